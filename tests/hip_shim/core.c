/* Errors, handles, devices, and what tests ask of the shim itself. */
#include "shim.h"

#include <stdio.h>
#include <string.h>

struct callbacks simulator;

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int last_error, current_device;

static struct object table[1 << 15];
static int used;

static struct {
    char name[64];
    int after, times, code;
} failures[8];
static char arch[256] = "gfx950:sramecc+:xnack-";
static int devices = 1, pools = 1;

static void make_lock(void) {
    /* A callback may end the life of an object of its caller, which calls again. */
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &recursive);
}

int enter(const char *name) {
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 8; i++) {
        if (strcmp(failures[i].name, name) != 0 || failures[i].times == 0 || failures[i].after-- > 0)
            continue;
        failures[i].after = 0;
        failures[i].times--;
        return failures[i].code;
    }
    return simulator.allocate == NULL ? NOT_INITIALIZED : SUCCESS;
}

int leave(int code) {
    if (code != SUCCESS && code != NOT_READY)
        last_error = code;
    pthread_mutex_unlock(&lock);
    return code;
}

struct object *make(enum kind kind) {
    if (used == sizeof table / sizeof *table)
        return NULL;
    struct object *made = &table[used++];
    made->kind = kind;
    made->alive = 1;
    return made;
}

struct object *find(const void *handle, enum kind kind) {
    const char *first = (const char *)table, *place = handle;
    if (place < first || place >= (const char *)(table + used) || (place - first) % sizeof *table)
        return NULL;
    struct object *found = &table[(place - first) / sizeof *table];
    return found->alive && found->kind == kind ? found : NULL;
}

void drop(struct object *object) { object->alive = 0; }

struct object *object_at(int index) { return index < used ? &table[index] : NULL; }

static const struct {
    int code;
    const char *name, *text;
} names[] = {
    {SUCCESS, "hipSuccess", "no error"},
    {INVALID_VALUE, "hipErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "hipErrorOutOfMemory", "out of memory"},
    {NOT_INITIALIZED, "hipErrorNotInitialized", "initialization error"},
    {INVALID_CONFIGURATION, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {INVALID_DEVICE_POINTER, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {INVALID_MEMCPY_DIRECTION, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {NO_DEVICE, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {INVALID_DEVICE, "hipErrorInvalidDevice", "invalid device ordinal"},
    {INVALID_IMAGE, "hipErrorInvalidImage", "device kernel image is invalid"},
    {NO_BINARY_FOR_GPU, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {INVALID_HANDLE, "hipErrorInvalidHandle", "invalid resource handle"},
    {ILLEGAL_STATE, "hipErrorIllegalState", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "hipErrorNotFound", "named symbol not found"},
    {NOT_READY, "hipErrorNotReady", "device not ready"},
    {ILLEGAL_ADDRESS, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {LAUNCH_FAILURE, "hipErrorLaunchFailure", "unspecified launch failure"},
    {NOT_SUPPORTED, "hipErrorNotSupported", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {CAPTURE_MERGE, "hipErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {CAPTURE_UNMATCHED, "hipErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {CAPTURE_UNJOINED, "hipErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {CAPTURE_ISOLATION, "hipErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {CAPTURE_IMPLICIT, "hipErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing one"},
    {CAPTURED_EVENT, "hipErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {CAPTURE_WRONG_THREAD, "hipErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture from another thread"},
};

static int name_index(int code) {
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (names[i].code == code)
            return i;
    return -1;
}

API const char *hipGetErrorName(int code) {
    int index = name_index(code);
    return index < 0 ? "hipErrorUnknown" : names[index].name;
}

API const char *hipGetErrorString(int code) {
    int index = name_index(code);
    return index < 0 ? "unknown error" : names[index].text;
}

API int hipGetLastError(void) {
    int code = last_error;
    last_error = SUCCESS;
    return code;
}

API int hipPeekAtLastError(void) { return last_error; }

API int hipInit(unsigned flags) {
    int code = enter(__func__);
    if (code == SUCCESS && flags != 0)
        code = INVALID_VALUE;
    return leave(code == SUCCESS && devices == 0 ? NO_DEVICE : code);
}

API int hipGetDeviceCount(int *count) {
    int code = enter(__func__);
    if (code == SUCCESS)
        *count = devices;
    return leave(code == SUCCESS && devices == 0 ? NO_DEVICE : code);
}

API int hipGetDevice(int *device) {
    int code = enter(__func__);
    if (code == SUCCESS)
        *device = current_device;
    return leave(code);
}

API int hipSetDevice(int device) {
    int code = enter(__func__);
    if (code == SUCCESS && (device < 0 || device >= devices))
        code = INVALID_DEVICE;
    if (code == SUCCESS)
        current_device = device;
    return leave(code);
}

/* Of hipDeviceProp_tR0600, 1472 bytes: name at 0, gcnArchName at 1160. */
API int hipGetDevicePropertiesR0600(char *properties, int device) {
    int code = enter(__func__);
    if (code == SUCCESS && (device < 0 || device >= devices))
        code = INVALID_DEVICE;
    if (code == SUCCESS) {
        memset(properties, 0, 1472);
        snprintf(properties, 256, "Simulated GPU");
        snprintf(properties + 1160, 256, "%s", arch);
    }
    return leave(code);
}

API int hipDeviceGetAttribute(int *value, int attribute, int device) {
    enum { MEMORY_POOLS = 88 };
    int code = enter(__func__);
    if (code == SUCCESS && (device < 0 || device >= devices))
        code = INVALID_DEVICE;
    if (code == SUCCESS && attribute != MEMORY_POOLS)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *value = pools;
    return leave(code);
}

/* For tests. */

API void shim_register(const struct callbacks *given) {
    pthread_once(&once, make_lock);
    simulator = *given;
}

API void shim_configure(const char *chip, int count, int with_pools) {
    snprintf(arch, sizeof arch, "%s", chip);
    devices = count;
    pools = with_pools;
}

/* After `after` more calls of a function, `times` calls of it fail. */
API int shim_fail(const char *name, int after, int times, int code) {
    for (int i = 0; i < 8; i++) {
        if (failures[i].times)
            continue;
        snprintf(failures[i].name, sizeof failures[i].name, "%s", name);
        failures[i].after = after;
        failures[i].times = times;
        failures[i].code = code;
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

API void shim_fail_no_more(void) { memset(failures, 0, sizeof failures); }

API int shim_pending(void) {
    int count = 0;
    for (int i = 0; i < used; i++)
        if (table[i].alive && table[i].kind == STREAM)
            count += (int)(table[i].issued - table[i].done);
    return count;
}

/* Handles of one kind that are not released. */
API int shim_live(int kind) {
    int count = 0;
    for (int i = 0; i < used; i++)
        count += table[i].alive && (int)table[i].kind == kind && kind != FUNCTION;
    return count;
}
