/* A stand-in for libamdhip64 that keeps HIP's calling rules and hands the work to a simulator.

   Handles are places of one table and are never used again, so that a handle which was released is known from one
   that never was. Work is queued and runs only when somebody waits for it: a program that reads a result without
   waiting finds what was there before. One lock serves all; callbacks run under it. */
#ifndef SHIM_H
#define SHIM_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_CONFIGURATION = 9,
    INVALID_DEVICE_POINTER = 17,
    INVALID_MEMCPY_DIRECTION = 21,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILURE = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};

enum kind { NOTHING, STREAM, EVENT, MODULE, FUNCTION, GRAPH, EXEC, KINDS };
enum action { COPY, FILL, KERNEL, RECORD, WAIT, FREE };
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE };

#define MAX_TAILS 16

/* Nodes of a capture that what comes next depends on. */
struct tails {
    int count, nodes[MAX_TAILS];
};

struct limits {
    uint32_t kernarg_bytes, max_lanes, lds_bytes, block;
};

struct command {
    enum action action;
    uintptr_t target, source; /* COPY, FILL, FREE */
    size_t size;
    int direction, value;
    struct object *function; /* KERNEL */
    uint32_t grid[3], block[3];
    void *arguments;
    struct object *event; /* RECORD */
    struct object *stream; /* WAIT: for this stream's work up to `position` */
    uint64_t position;
    struct tails after; /* in a capture */
    struct command *next;
};

struct capture {
    int mode, invalid, ended;
    pthread_t thread;
    struct object *origin;
    struct command **nodes;
    int count;
};

struct object {
    enum kind kind;
    int alive;
    /* STREAM */
    int blocking, busy, error;
    struct command *head, *tail;
    uint64_t issued, done;
    struct capture *capture; /* of a stream, or of the last record of an event */
    struct tails tails;
    /* EVENT */
    int timing, recorded, reached;
    struct object *stream;
    uint64_t position;
    double time;
    /* MODULE, FUNCTION */
    int id;
    struct object *module;
    struct limits limits;
    /* GRAPH, EXEC */
    struct command **nodes;
    int count;
};

/* What the simulator does; each returns SUCCESS or one of the codes above. Device addresses are its own. */
struct callbacks {
    int (*allocate)(size_t size, uintptr_t *address);
    int (*release)(uintptr_t address);
    int (*copy_in)(uintptr_t target, const void *source, size_t size);
    int (*copy_out)(void *target, uintptr_t source, size_t size);
    int (*fill)(uintptr_t target, int value, size_t size);
    int (*load)(const void *image, size_t size, int *id);
    int (*find)(int module, const char *name, int *id, struct limits *limits);
    int (*launch)(int function, const uint32_t *grid, const uint32_t *block, const void *arguments);
};

extern struct callbacks simulator;

/* core.c: `enter` takes the lock and counts the call; `leave` gives it back and notes an error for the thread. */
int enter(const char *name);
int leave(int code);
struct object *make(enum kind kind);
struct object *find(const void *handle, enum kind kind);
void drop(struct object *object);
struct object *object_at(int index);

/* stream.c */
extern struct object null_stream;
struct object *stream_of(const void *handle);
int submit(struct object *stream, const struct command *command);
int run(struct object *stream, uint64_t position);
int run_all(void);

/* capture.c */
int unsafe(void);
void invalidate(struct capture *capture);
int blocking_capture(void);
int add_node(struct object *stream, const struct command *command);
int record_in_capture(struct object *event, struct object *stream);
int wait_in_capture(struct object *stream, struct object *event);
struct command *copy_of(const struct command *command);

/* memory.c */
int execute_copy(const struct command *command);
int execute_fill(const struct command *command);
int execute_free(const struct command *command);

#endif
