/* Stream capture and graphs. */
#include "shim.h"

#include <stdlib.h>
#include <string.h>

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static size_t argument_bytes(const struct command *command) {
    return command->action == KERNEL ? (command->function->limits.kernarg_bytes + 15) / 16 * 16 : 0;
}

struct command *copy_of(const struct command *command) {
    struct command *made = malloc(sizeof *made);
    if (made == NULL)
        abort();
    *made = *command;
    made->next = NULL;
    size_t size = argument_bytes(command);
    if (size > 0) {
        made->arguments = malloc(size);
        if (made->arguments == NULL)
            abort();
        memcpy(made->arguments, command->arguments, size);
    }
    return made;
}

static void add_tail(struct tails *tails, int node) {
    for (int i = 0; i < tails->count; i++)
        if (tails->nodes[i] == node)
            return;
    if (tails->count == MAX_TAILS)
        abort();
    tails->nodes[tails->count++] = node;
}

void invalidate(struct capture *capture) { capture->invalid = 1; }

/* Calls that may not happen while a capture runs: they end its validity. */
int unsafe(void) {
    int code = SUCCESS;
    struct object *stream;
    for (int i = 0; (stream = object_at(i)) != NULL; i++) {
        if (stream->kind != STREAM || !stream->alive || stream->capture == NULL)
            continue;
        struct capture *capture = stream->capture;
        int mine = pthread_equal(capture->thread, pthread_self());
        if (capture->mode == GLOBAL || (capture->mode == THREAD_LOCAL && mine)) {
            invalidate(capture);
            code = CAPTURE_UNSUPPORTED;
        }
    }
    return code;
}

/* Whether a stream that the default stream would wait for is capturing; if so, its capture is no longer valid. */
int blocking_capture(void) {
    int found = 0;
    struct object *stream;
    for (int i = 0; (stream = object_at(i)) != NULL; i++) {
        if (stream->kind == STREAM && stream->alive && stream->blocking && stream->capture != NULL) {
            invalidate(stream->capture);
            found = 1;
        }
    }
    return found;
}

int add_node(struct object *stream, const struct command *command) {
    struct capture *capture = stream->capture;
    if (capture->invalid)
        return CAPTURE_INVALIDATED;
    capture->nodes = realloc(capture->nodes, (capture->count + 1) * sizeof *capture->nodes);
    if (capture->nodes == NULL)
        abort();
    struct command *node = copy_of(command);
    node->after = stream->tails;
    capture->nodes[capture->count] = node;
    stream->tails = (struct tails){.count = 1, .nodes = {capture->count++}};
    return SUCCESS;
}

int record_in_capture(struct object *event, struct object *stream) {
    if (stream->capture->invalid)
        return CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->tails = stream->tails;
    event->recorded = 0;
    return SUCCESS;
}

int wait_in_capture(struct object *stream, struct object *event) {
    if (event->capture != NULL && event->capture->ended)
        return CAPTURED_EVENT;
    if (stream->capture != NULL && stream->capture->invalid)
        return CAPTURE_INVALIDATED;
    if (event->capture == NULL) {
        if (!event->recorded)
            return SUCCESS;
        invalidate(stream->capture);
        return CAPTURE_ISOLATION;
    }
    if (stream->capture != NULL && stream->capture != event->capture) {
        invalidate(stream->capture);
        invalidate(event->capture);
        return CAPTURE_MERGE;
    }
    stream->capture = event->capture;
    for (int i = 0; i < event->tails.count; i++)
        add_tail(&stream->tails, event->tails.nodes[i]);
    return SUCCESS;
}

API int hipStreamBeginCapture(void *handle, int mode) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    if (code == SUCCESS && stream == NULL)
        code = INVALID_HANDLE;
    if (code == SUCCESS && (mode < GLOBAL || mode > RELAXED))
        code = INVALID_VALUE;
    if (code == SUCCESS && stream == &null_stream)
        code = CAPTURE_UNSUPPORTED;
    if (code == SUCCESS && stream->capture != NULL)
        code = ILLEGAL_STATE;
    if (code == SUCCESS) {
        stream->capture = calloc(1, sizeof *stream->capture);
        if (stream->capture == NULL)
            abort();
        stream->capture->mode = mode;
        stream->capture->thread = pthread_self();
        stream->capture->origin = stream;
        stream->tails = (struct tails){0};
    }
    return leave(code);
}

/* Whether every node lies before the end of the stream in which the capture began. */
static int joined(const struct capture *capture) {
    char *reached = calloc(capture->count + 1, 1);
    if (reached == NULL)
        abort();
    const struct tails *last = &capture->origin->tails;
    for (int i = 0; i < last->count; i++)
        reached[last->nodes[i]] = 1;
    /* Nodes come after what they depend on. */
    int all = 1;
    for (int node = capture->count - 1; node >= 0; node--) {
        all = all && reached[node];
        const struct tails *before = &capture->nodes[node]->after;
        for (int i = 0; reached[node] && i < before->count; i++)
            reached[before->nodes[i]] = 1;
    }
    free(reached);
    return all;
}

static void leave_capture(struct capture *capture) {
    struct object *stream;
    for (int i = 0; (stream = object_at(i)) != NULL; i++) {
        if (stream->kind == STREAM && stream->capture == capture) {
            stream->capture = NULL;
            stream->tails = (struct tails){0};
        }
    }
    capture->ended = 1;
}

static void release_nodes(struct command **nodes, int count) {
    for (int i = 0; i < count; i++) {
        free(nodes[i]->arguments);
        free(nodes[i]);
    }
    free(nodes);
}

API int hipStreamEndCapture(void *handle, void **graph) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    if (code == SUCCESS && (stream == NULL || graph == NULL))
        code = stream == NULL ? INVALID_HANDLE : INVALID_VALUE;
    if (code != SUCCESS)
        return leave(code);
    *graph = NULL;
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return leave(ILLEGAL_STATE);
    if (capture->origin != stream)
        return leave(CAPTURE_UNMATCHED);
    if (capture->mode != RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return leave(CAPTURE_WRONG_THREAD);
    code = capture->invalid ? CAPTURE_INVALIDATED : joined(capture) ? SUCCESS : CAPTURE_UNJOINED;
    leave_capture(capture);
    struct object *made = code == SUCCESS ? make(GRAPH) : NULL;
    if (made == NULL) {
        release_nodes(capture->nodes, capture->count);
        return leave(code == SUCCESS ? OUT_OF_MEMORY : code);
    }
    made->nodes = capture->nodes;
    made->count = capture->count;
    *graph = made;
    return leave(SUCCESS);
}

API int hipGraphInstantiateWithFlags(void **exec, void *handle, unsigned long long flags) {
    int code = enter(__func__);
    struct object *graph = code == SUCCESS ? find(handle, GRAPH) : NULL;
    if (code == SUCCESS && (graph == NULL || exec == NULL || flags != 0))
        code = INVALID_VALUE;
    struct object *made = code == SUCCESS ? make(EXEC) : NULL;
    if (code == SUCCESS && made == NULL)
        code = OUT_OF_MEMORY;
    if (code == SUCCESS) {
        made->nodes = malloc((graph->count + 1) * sizeof *made->nodes);
        if (made->nodes == NULL)
            abort();
        for (int i = 0; i < graph->count; i++)
            made->nodes[i] = copy_of(graph->nodes[i]);
        made->count = graph->count;
        *exec = made;
    }
    return leave(code);
}

API int hipGraphLaunch(void *handle, void *stream_handle) {
    int code = enter(__func__);
    struct object *exec = code == SUCCESS ? find(handle, EXEC) : NULL;
    struct object *stream = code == SUCCESS ? stream_of(stream_handle) : NULL;
    if (code == SUCCESS && (exec == NULL || stream == NULL))
        code = exec == NULL ? INVALID_VALUE : INVALID_HANDLE;
    if (code == SUCCESS && stream->capture != NULL) {
        invalidate(stream->capture);
        code = CAPTURE_UNSUPPORTED;
    }
    for (int i = 0; code == SUCCESS && i < exec->count; i++)
        code = submit(stream, exec->nodes[i]);
    return leave(code);
}

static int destroy(const void *handle, enum kind kind) {
    struct object *object = find(handle, kind);
    if (object == NULL)
        return INVALID_VALUE;
    release_nodes(object->nodes, object->count);
    drop(object);
    return SUCCESS;
}

API int hipGraphDestroy(void *graph) {
    int code = enter(__func__);
    return leave(code == SUCCESS ? destroy(graph, GRAPH) : code);
}

API int hipGraphExecDestroy(void *exec) {
    int code = enter(__func__);
    return leave(code == SUCCESS ? destroy(exec, EXEC) : code);
}
