/* Allocations, copies and fills. */
#include "shim.h"

#include <stdlib.h>

struct allocation {
    uintptr_t address;
    size_t size;
    int leaving; /* a stream-ordered free is queued */
    int host;    /* lies on the host, where kernels reach it too */
};

static struct allocation *live;
static int count, room;
static size_t in_use, limit = (size_t)1 << 40;
static char default_pool;

static struct allocation *holding(uintptr_t address, size_t size) {
    for (int i = 0; i < count; i++)
        if (address >= live[i].address && address - live[i].address <= live[i].size &&
            size <= live[i].size - (address - live[i].address))
            return &live[i];
    return NULL;
}

/* Whether any byte of a range lies on the device alone. */
static int touches(uintptr_t address, size_t size) {
    for (int i = 0; i < count; i++)
        if (!live[i].host && address < live[i].address + live[i].size && live[i].address < address + size)
            return 1;
    return 0;
}

static int allocate(void **pointer, size_t size) {
    if (pointer == NULL)
        return INVALID_VALUE;
    *pointer = NULL;
    if (size == 0)
        return SUCCESS;
    if (size > limit - in_use)
        return OUT_OF_MEMORY;
    if (count == room) {
        struct allocation *more = realloc(live, (room + 256) * sizeof *live);
        if (more == NULL)
            return OUT_OF_MEMORY;
        live = more;
        room += 256;
    }
    uintptr_t address = 0;
    int code = simulator.allocate(size, &address);
    if (code != SUCCESS)
        return code;
    live[count++] = (struct allocation){.address = address, .size = size};
    in_use += size;
    *pointer = (void *)address;
    return SUCCESS;
}

static int release(uintptr_t address) {
    for (int i = 0; i < count; i++) {
        if (live[i].address != address)
            continue;
        in_use -= live[i].size;
        live[i] = live[--count];
        return simulator.release(address);
    }
    return INVALID_VALUE;
}

API int hipMalloc(void **pointer, size_t size) {
    int code = enter(__func__);
    if (code == SUCCESS)
        code = unsafe();
    return leave(code == SUCCESS ? allocate(pointer, size) : code);
}

/* Waits for the whole device first, as HIP says it does. */
API int hipFree(void *pointer) {
    int code = enter(__func__);
    if (code == SUCCESS)
        code = unsafe();
    if (code == SUCCESS && pointer != NULL) {
        struct allocation *found = holding((uintptr_t)pointer, 0);
        if (found == NULL || found->address != (uintptr_t)pointer || found->leaving)
            return leave(INVALID_VALUE);
        code = run_all();
        int freed = release((uintptr_t)pointer);
        code = code == SUCCESS ? freed : code;
    }
    return leave(code);
}

API int hipHostMalloc(void **pointer, size_t size, unsigned flags) {
    enum { PORTABLE_MAPPED_COHERENT = 0x40000003 };
    int code = enter(__func__);
    if (code == SUCCESS)
        code = flags == PORTABLE_MAPPED_COHERENT ? unsafe() : INVALID_VALUE;
    if (code == SUCCESS)
        code = allocate(pointer, size);
    if (code == SUCCESS && size > 0) {
        live[count - 1].host = 1;
        /* The simulator does not see what the host writes. */
        code = simulator.fill((uintptr_t)*pointer, 0, size);
    }
    return leave(code);
}

API int hipHostGetDevicePointer(void **device, void *host, unsigned flags) {
    int code = enter(__func__);
    if (code == SUCCESS) {
        struct allocation *found = holding((uintptr_t)host, 0);
        code = device == NULL || flags != 0 || found == NULL || !found->host ? INVALID_VALUE : SUCCESS;
    }
    if (code == SUCCESS)
        *device = host;
    return leave(code);
}

/* Waits for the whole device first, as hipFree. */
API int hipHostFree(void *pointer) {
    int code = enter(__func__);
    if (code == SUCCESS)
        code = unsafe();
    if (code == SUCCESS && pointer != NULL) {
        struct allocation *found = holding((uintptr_t)pointer, 0);
        if (found == NULL || found->address != (uintptr_t)pointer || !found->host)
            return leave(INVALID_VALUE);
        code = run_all();
        int freed = release((uintptr_t)pointer);
        code = code == SUCCESS ? freed : code;
    }
    return leave(code);
}

API int hipMallocAsync(void **pointer, size_t size, void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    if (code == SUCCESS)
        code = stream == NULL ? INVALID_HANDLE : stream->capture != NULL ? unsafe() : SUCCESS;
    return leave(code == SUCCESS ? allocate(pointer, size) : code);
}

API int hipFreeAsync(void *pointer, void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    if (code == SUCCESS)
        code = stream == NULL ? INVALID_HANDLE : stream->capture != NULL ? unsafe() : SUCCESS;
    if (code == SUCCESS) {
        struct allocation *found = holding((uintptr_t)pointer, 0);
        if (found == NULL || found->address != (uintptr_t)pointer || found->leaving)
            return leave(INVALID_VALUE);
        struct command leaving = {.action = FREE, .target = (uintptr_t)pointer};
        found->leaving = 1;
        code = submit(stream, &leaving);
    }
    return leave(code);
}

API int hipDeviceGetDefaultMemPool(void **pool, int device) {
    int code = enter(__func__);
    if (code == SUCCESS && (pool == NULL || device < 0))
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *pool = &default_pool;
    return leave(code);
}

API int hipMemPoolSetAttribute(void *pool, int attribute, const void *value) {
    enum { RELEASE_THRESHOLD = 4 };
    int code = enter(__func__);
    if (code == SUCCESS && (pool != &default_pool || attribute != RELEASE_THRESHOLD || value == NULL))
        code = INVALID_VALUE;
    return leave(code);
}

API int hipMemPoolTrimTo(void *pool, size_t keep) {
    int code = enter(__func__);
    (void)keep;
    if (code == SUCCESS)
        code = pool == &default_pool ? unsafe() : INVALID_VALUE;
    return leave(code);
}

static int side(uintptr_t address, size_t size, int on_device) {
    struct allocation *found = holding(address, size);
    if (on_device)
        return found != NULL && !found->leaving;
    return address != 0 && !touches(address, size);
}

static int check_copy(const struct command *copy) {
    if (copy->direction < HOST_TO_DEVICE || copy->direction > DEVICE_TO_DEVICE)
        return INVALID_MEMCPY_DIRECTION;
    int to_device = copy->direction != DEVICE_TO_HOST, from_device = copy->direction != HOST_TO_DEVICE;
    if (copy->size > 0 && (!side(copy->target, copy->size, to_device) || !side(copy->source, copy->size, from_device)))
        return INVALID_VALUE;
    return SUCCESS;
}

API int hipMemcpyAsync(void *target, const void *source, size_t size, int direction, void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    struct command copy = {
        .action = COPY,
        .target = (uintptr_t)target,
        .source = (uintptr_t)source,
        .size = size,
        .direction = direction,
    };
    if (code == SUCCESS)
        code = stream == NULL ? INVALID_HANDLE : check_copy(&copy);
    return leave(code == SUCCESS && size > 0 ? submit(stream, &copy) : code);
}

/* A piece of work for every row. */
API int hipMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                         size_t rows, int direction, void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    if (code == SUCCESS)
        code = stream == NULL ? INVALID_HANDLE : width > target_pitch || width > source_pitch ? INVALID_VALUE : SUCCESS;
    for (size_t row = 0; code == SUCCESS && width > 0 && row < rows; row++) {
        struct command copy = {
            .action = COPY,
            .target = (uintptr_t)target + row * target_pitch,
            .source = (uintptr_t)source + row * source_pitch,
            .size = width,
            .direction = direction,
        };
        code = check_copy(&copy);
        if (code == SUCCESS)
            code = submit(stream, &copy);
    }
    return leave(code);
}

API int hipMemsetAsync(void *target, int value, size_t size, void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    struct command fill = {.action = FILL, .target = (uintptr_t)target, .value = value & 255, .size = size};
    if (code == SUCCESS && stream == NULL)
        code = INVALID_HANDLE;
    if (code == SUCCESS && size > 0 && !side(fill.target, size, 1))
        code = INVALID_VALUE;
    return leave(code == SUCCESS && size > 0 ? submit(stream, &fill) : code);
}

/* `count` words of 32 bits; tests have few of them: a piece of work for every byte. */
API int hipMemsetD32Async(void *target, int value, size_t count, void *handle) {
    int code = enter(__func__);
    struct object *stream = code == SUCCESS ? stream_of(handle) : NULL;
    if (code == SUCCESS && stream == NULL)
        code = INVALID_HANDLE;
    if (code == SUCCESS && ((uintptr_t)target % 4 != 0 || !side((uintptr_t)target, 4 * count, 1)))
        code = INVALID_VALUE;
    for (size_t byte = 0; code == SUCCESS && byte < 4 * count; byte++) {
        int part = (int)((uint32_t)value >> 8 * (byte % 4) & 255);
        struct command fill = {.action = FILL, .target = (uintptr_t)target + byte, .value = part, .size = 1};
        code = submit(stream, &fill);
    }
    return leave(code);
}

/* Memory may have gone between the call and now. */
int execute_copy(const struct command *copy) {
    int to_device = copy->direction != DEVICE_TO_HOST, from_device = copy->direction != HOST_TO_DEVICE;
    if ((to_device && !holding(copy->target, copy->size)) || (from_device && !holding(copy->source, copy->size)))
        return ILLEGAL_ADDRESS;
    if (!from_device)
        return simulator.copy_in(copy->target, (const void *)copy->source, copy->size);
    if (!to_device)
        return simulator.copy_out((void *)copy->target, copy->source, copy->size);
    void *between = malloc(copy->size);
    if (between == NULL)
        return OUT_OF_MEMORY;
    int code = simulator.copy_out(between, copy->source, copy->size);
    if (code == SUCCESS)
        code = simulator.copy_in(copy->target, between, copy->size);
    free(between);
    return code;
}

int execute_fill(const struct command *fill) {
    return holding(fill->target, fill->size) ? simulator.fill(fill->target, fill->value, fill->size) : ILLEGAL_ADDRESS;
}

int execute_free(const struct command *leaving) { return release(leaving->target); }

/* For tests. */

API size_t shim_bytes(void) { return in_use; }

API void shim_limit_memory(size_t bytes) { limit = bytes; }
