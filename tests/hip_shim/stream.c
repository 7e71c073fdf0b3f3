/* Streams and events: queues of work, run when somebody waits. */
#include "shim.h"

#include <stdlib.h>
#include <time.h>

struct object null_stream = {.kind = STREAM, .alive = 1, .blocking = 1};

struct object *stream_of(const void *handle) { return handle == NULL ? &null_stream : find(handle, STREAM); }

static void append(struct object *stream, struct command *command) {
    if (stream->tail == NULL)
        stream->head = command;
    else
        stream->tail->next = command;
    stream->tail = command;
    stream->issued++;
}

static void append_wait(struct object *stream, struct object *other, uint64_t position) {
    struct command wait = {.action = WAIT, .stream = other, .position = position};
    append(stream, copy_of(&wait));
}

/* The legacy default stream waits for all blocking streams, and they for it. */
static void order_with_default(struct object *stream) {
    if (!stream->blocking)
        return;
    if (stream != &null_stream) {
        if (null_stream.done < null_stream.issued)
            append_wait(stream, &null_stream, null_stream.issued);
        return;
    }
    struct object *other;
    for (int i = 0; (other = object_at(i)) != NULL; i++)
        if (other->kind == STREAM && other->alive && other->blocking && other->done < other->issued)
            append_wait(stream, other, other->issued);
}

int submit(struct object *stream, const struct command *command) {
    if (stream->capture != NULL)
        return add_node(stream, command);
    if (stream == &null_stream && blocking_capture())
        return CAPTURE_IMPLICIT;
    order_with_default(stream);
    /* Memory is gone as soon as it may be: other streams are in no order with this one. */
    if (command->action == FREE && stream->done == stream->issued)
        return execute_free(command);
    append(stream, copy_of(command));
    return SUCCESS;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

static int execute(struct command *command, uint64_t position) {
    switch (command->action) {
    case COPY:
        return execute_copy(command);
    case FILL:
        return execute_fill(command);
    case FREE:
        return execute_free(command);
    case KERNEL:
        /* Unloading a module under a queued launch takes the code away. */
        if (!command->function->module->alive)
            return LAUNCH_FAILURE;
        return simulator.launch(command->function->id, command->grid, command->block, command->arguments);
    case RECORD:
        if (command->event->position == position) {
            command->event->reached = 1;
            command->event->time = now();
        }
        return SUCCESS;
    case WAIT:
        run(command->stream, command->position);
        return command->stream->error;
    }
    return NOT_SUPPORTED;
}

static void discard(struct object *stream) {
    while (stream->head != NULL) {
        struct command *command = stream->head;
        if (command->action == RECORD)
            command->event->reached = 1;
        stream->head = command->next;
        free(command->arguments);
        free(command);
    }
    stream->tail = NULL;
    stream->done = stream->issued;
}

/* Runs a stream's work up to a position; the first failure drops the rest, and is returned to who waits next. */
int run(struct object *stream, uint64_t position) {
    if (stream->busy)
        return NOT_SUPPORTED;
    stream->busy = 1;
    while (stream->done < position && stream->head != NULL) {
        struct command *command = stream->head;
        stream->head = command->next;
        if (stream->head == NULL)
            stream->tail = NULL;
        int code = execute(command, stream->done + 1);
        stream->done++;
        free(command->arguments);
        free(command);
        if (code != SUCCESS) {
            stream->error = code;
            discard(stream);
        }
    }
    stream->busy = 0;
    return SUCCESS;
}

static int take_error(struct object *stream) {
    int code = stream->error;
    stream->error = SUCCESS;
    return code;
}

int run_all(void) {
    int code = run(&null_stream, null_stream.issued), found = take_error(&null_stream);
    struct object *stream;
    for (int i = 0; (stream = object_at(i)) != NULL; i++) {
        if (stream->kind != STREAM || !stream->alive || stream->capture != NULL)
            continue;
        int one = run(stream, stream->issued);
        code = code == SUCCESS ? one : code;
        one = take_error(stream);
        found = found == SUCCESS ? one : found;
    }
    return code == SUCCESS ? found : code;
}

API int hipDeviceSynchronize(void) {
    int code = enter(__func__);
    if (code == SUCCESS)
        code = unsafe();
    return leave(code == SUCCESS ? run_all() : code);
}

API int hipStreamCreateWithFlags(void **stream, unsigned flags) {
    int code = enter(__func__);
    if (code == SUCCESS && (stream == NULL || flags > 1))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        struct object *made = make(STREAM);
        code = made == NULL ? OUT_OF_MEMORY : SUCCESS;
        if (made != NULL)
            made->blocking = flags == 0;
        *stream = made;
    }
    return leave(code);
}

/* HIP promises nothing for work that has not run by then: here it never runs. */
API int hipStreamDestroy(void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? find(handle, STREAM) : NULL;
    if (code == SUCCESS && stream == NULL)
        code = INVALID_HANDLE;
    if (code == SUCCESS) {
        if (stream->capture != NULL)
            invalidate(stream->capture);
        discard(stream);
        drop(stream);
    }
    return leave(code);
}

static int not_capturing(struct object *stream) {
    if (stream->capture == NULL)
        return stream == &null_stream && blocking_capture() ? CAPTURE_IMPLICIT : SUCCESS;
    invalidate(stream->capture);
    return CAPTURE_UNSUPPORTED;
}

API int hipStreamSynchronize(void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    if (code == SUCCESS)
        code = stream == NULL ? INVALID_HANDLE : not_capturing(stream);
    if (code == SUCCESS && stream == &null_stream)
        order_with_default(stream);
    if (code == SUCCESS)
        code = run(stream, stream->issued);
    return leave(code == SUCCESS ? take_error(stream) : code);
}

/* Asking does one piece of work, so that a program which asks until it is done comes to an end. */
API int hipStreamQuery(void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    if (code == SUCCESS)
        code = stream == NULL ? INVALID_HANDLE : not_capturing(stream);
    if (code == SUCCESS && stream->done < stream->issued) {
        run(stream, stream->done + 1);
        code = stream->error == SUCCESS ? NOT_READY : take_error(stream);
    }
    return leave(code);
}

API int hipStreamWaitEvent(void *handle, void *event_handle, unsigned flags) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    struct object *event = code == SUCCESS ? find(event_handle, EVENT) : NULL;
    if (code == SUCCESS && (stream == NULL || event == NULL))
        code = INVALID_HANDLE;
    if (code == SUCCESS && flags != 0)
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        if (stream->capture != NULL || event->capture != NULL)
            code = wait_in_capture(stream, event);
        else if (event->recorded && !event->reached)
            append_wait(stream, event->stream, event->position);
    }
    return leave(code);
}

API int hipEventCreateWithFlags(void **event, unsigned flags) {
    enum { DISABLE_TIMING = 2 };
    int code = enter(__func__);
    if (code == SUCCESS && (event == NULL || (flags & ~3u)))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        struct object *made = make(EVENT);
        code = made == NULL ? OUT_OF_MEMORY : SUCCESS;
        if (made != NULL)
            made->timing = !(flags & DISABLE_TIMING);
        *event = made;
    }
    return leave(code);
}

API int hipEventDestroy(void *handle) {
    int code = enter(__func__);
    struct object *event = code == SUCCESS ? find(handle, EVENT) : NULL;
    if (code == SUCCESS && event == NULL)
        code = INVALID_HANDLE;
    if (code == SUCCESS)
        drop(event);
    return leave(code);
}

API int hipEventRecord(void *handle, void *stream_handle) {
    int code = enter(__func__);
    struct object *event = code == SUCCESS ? find(handle, EVENT) : NULL;
    struct object *stream = code == SUCCESS ? stream_of(stream_handle) : NULL;
    if (code == SUCCESS && (event == NULL || stream == NULL))
        code = INVALID_HANDLE;
    if (code == SUCCESS && stream->capture != NULL)
        return leave(record_in_capture(event, stream));
    if (code == SUCCESS) {
        struct command record = {.action = RECORD, .event = event};
        code = submit(stream, &record);
    }
    if (code == SUCCESS) {
        event->capture = NULL;
        event->recorded = 1;
        event->reached = 0;
        event->stream = stream;
        event->position = stream->issued;
    }
    return leave(code);
}

static int event_for_host(const void *handle, struct object **event) {
    *event = find(handle, EVENT);
    if (*event == NULL)
        return INVALID_HANDLE;
    if ((*event)->capture == NULL)
        return SUCCESS;
    invalidate((*event)->capture);
    return CAPTURED_EVENT;
}

API int hipEventSynchronize(void *handle) {
    struct object *event = NULL;
    int code = enter(__func__);
    if (code == SUCCESS)
        code = event_for_host(handle, &event);
    if (code == SUCCESS && event->recorded && !event->reached) {
        code = run(event->stream, event->position);
        code = code == SUCCESS ? take_error(event->stream) : code;
    }
    return leave(code);
}

API int hipEventQuery(void *handle) {
    struct object *event = NULL;
    int code = enter(__func__);
    if (code == SUCCESS)
        code = event_for_host(handle, &event);
    if (code == SUCCESS && event->recorded && !event->reached) {
        run(event->stream, event->stream->done + 1);
        code = event->stream->error == SUCCESS ? NOT_READY : take_error(event->stream);
    }
    return leave(code);
}

API int hipEventElapsedTime(float *milliseconds, void *start_handle, void *stop_handle) {
    int code = enter(__func__);
    struct object *start = code == SUCCESS ? find(start_handle, EVENT) : NULL;
    struct object *stop = code == SUCCESS ? find(stop_handle, EVENT) : NULL;
    if (code == SUCCESS && milliseconds == NULL)
        code = INVALID_VALUE;
    if (code == SUCCESS && (start == NULL || stop == NULL || !start->timing || !stop->timing))
        code = INVALID_HANDLE;
    if (code == SUCCESS && (!start->recorded || !stop->recorded))
        code = INVALID_HANDLE;
    if (code == SUCCESS && (!start->reached || !stop->reached))
        code = NOT_READY;
    if (code == SUCCESS)
        *milliseconds = (float)(stop->time - start->time);
    return leave(code);
}
