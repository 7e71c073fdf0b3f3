/* A CUDA driver without a GPU, for tests: memory is the host's, and kernels are the two that `run` knows. It keeps the
 * driver's rules: every call needs a current context, handles are checked, memory is checked at every use, and work
 * that is captured is not done but recorded. Facts: NVIDIA's CUDA driver API reference. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BAD_VALUE = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_CONTEXT = 201, BAD_PTX = 218,
       BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, BAD_ADDRESS = 700, CAPTURE_BAD = 900 };
enum { STREAM = 1, EVENT, MODULE, FUNCTION, GRAPH, EXECUTABLE, CONTEXT, POOL };

typedef struct work { int kind; uint64_t to, from; size_t size; struct handle *function; unsigned grid[3], block;
                      char arguments[256]; struct work *next; } work;
typedef struct handle { int kind; struct handle *next; int capturing; work *first, *last; char name[128]; } handle;
typedef struct block { char *start; size_t size; struct block *next; int pooled; } block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static handle *handles;
static block *blocks;
static int initialized, devices = 1, minor = 0, stream_writes = 1;
static size_t limit = (size_t)1 << 40;
static handle context = {CONTEXT};
static _Thread_local int depth;
static _Thread_local handle *stack[16];

static handle *make(int kind) {
    handle *made = calloc(1, sizeof *made);
    made->kind = kind;
    pthread_mutex_lock(&lock);
    made->next = handles, handles = made;
    pthread_mutex_unlock(&lock);
    return made;
}

static handle *known(void *pointer, int kind) {
    for (handle *each = handles; each; each = each->next)
        if (each == pointer && each->kind == kind) return each;
    return NULL;
}

static int release(void *pointer, int kind) {
    pthread_mutex_lock(&lock);
    for (handle **each = &handles; *each; each = &(*each)->next)
        if (*each == pointer && (*each)->kind == kind) {
            handle *gone = *each;
            *each = gone->next;
            free(gone);
            pthread_mutex_unlock(&lock);
            return OK;
        }
    pthread_mutex_unlock(&lock);
    return BAD_HANDLE;
}

static int inside(uint64_t address, size_t size) {
    for (block *each = blocks; each; each = each->next)
        if ((char *)address >= each->start && (char *)address + size <= each->start + each->size) return 1;
    return 0;
}

/* What the tests ask and set. */
void shim_stream_writes(int can) { stream_writes = can; }
void shim_set(int count, int capability_minor, size_t bytes) { devices = count, minor = capability_minor, limit = bytes; }
int shim_living(int kind) {
    int count = 0;
    for (handle *each = handles; each; each = each->next) count += each->kind == kind;
    return count;
}
int shim_blocks(void) {
    int count = 0;
    for (block *each = blocks; each; each = each->next) count++;
    return count;
}
int shim_contexts(void) { return depth; }

#define NEED_CONTEXT if (!initialized) return NOT_INITIALIZED; if (depth == 0) return BAD_CONTEXT

int cuInit(unsigned flags) { initialized = 1; return devices ? OK : NO_DEVICE; }
int cuDeviceGetCount(int *count) { *count = devices; return initialized ? OK : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int number) { *device = number + 7; return number < devices ? OK : BAD_VALUE; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "Shim %d", device - 7); return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 76 ? minor : attribute == 122 ? stream_writes : 132;
    return OK;
}
int cuDevicePrimaryCtxRetain(void **made, int device) { *made = &context; return device >= 7 ? OK : BAD_VALUE; }
int cuCtxPushCurrent_v2(void *pushed) {
    if (pushed != &context || depth == 16) return BAD_CONTEXT;
    stack[depth++] = pushed;
    return OK;
}
int cuCtxPopCurrent_v2(void **popped) { if (!depth) return BAD_CONTEXT; *popped = stack[--depth]; return OK; }
int cuCtxGetCurrent(void **current) { *current = depth ? stack[depth - 1] : NULL; return OK; }
int cuCtxSynchronize(void) { NEED_CONTEXT; return OK; }

int cuGetErrorName(int code, const char **name) {
    *name = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == BAD_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
          : code == BAD_PTX ? "CUDA_ERROR_INVALID_PTX" : code == BAD_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : code == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND"
          : code == BAD_HANDLE ? "CUDA_ERROR_INVALID_HANDLE" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
int cuGetErrorString(int code, const char **text) { *text = "said by the shim"; return OK; }

int cuModuleLoadDataEx(void **module, const char *text, unsigned count, int *options, void **values) {
    NEED_CONTEXT;
    if (!strstr(text, ".version") || strstr(text, "broken")) {
        for (unsigned each = 0; each < count; each++)
            if (options[each] == 5) snprintf(values[each], 64, "line 1: syntax error");
        return BAD_PTX;
    }
    *module = make(MODULE);
    return OK;
}
int cuModuleUnload(void *module) { NEED_CONTEXT; return release(module, MODULE); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    NEED_CONTEXT;
    if (!known(module, MODULE)) return BAD_HANDLE;
    handle *made = make(FUNCTION);
    snprintf(made->name, sizeof made->name, "%s", name);
    *function = made;
    return OK;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    NEED_CONTEXT;
    return known(function, FUNCTION) && attribute == 8 && value <= 232448 ? OK : BAD_VALUE;
}

/* add_one(words, count): words[i] += 1; scale(words, count, factor i64): words[i] *= factor. */
static int run(work *each) {
    int *words = *(int **)each->arguments, count = *(int *)(each->arguments + 8);
    if (!inside((uint64_t)words, 4 * (size_t)count)) return BAD_ADDRESS;
    for (int at = 0; at < count && at < (int)(each->grid[0] * each->block); at++) {
        if (strcmp(each->function->name, "add_one") == 0) words[at] += 1;
        else words[at] *= (int)*(int64_t *)(each->arguments + 16);
    }
    return OK;
}

static int perform(work *each) {
    if (each->kind == 2) return run(each);
    if ((each->kind != 0 && !inside(each->from, each->size)) || (each->kind != 1 && !inside(each->to, each->size)))
        return BAD_ADDRESS;
    if (each->kind == 3) memset((void *)each->to, (int)each->from, each->size);
    else memcpy((void *)each->to, (void *)each->from, each->size);
    return OK;
}

static int queue(void *stream, work item) {
    handle *found = known(stream, STREAM);
    if (!found) return BAD_HANDLE;
    if (!found->capturing) return perform(&item);
    work *kept = malloc(sizeof *kept);
    *kept = item;
    kept->next = NULL;
    if (found->last) found->last->next = kept; else found->first = kept;
    found->last = kept;
    return OK;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    NEED_CONTEXT;
    work item = {.kind = 2, .function = known(function, FUNCTION), .grid = {x, y, z}, .block = bx};
    if (!item.function || parameters || !extra || (size_t)extra[0] != 1 || (size_t)extra[2] != 2 || extra[4]) return BAD_VALUE;
    size_t wanted = strcmp(item.function->name, "scale") == 0 ? 24 : 12;
    if (*(size_t *)extra[3] != wanted) return BAD_VALUE;
    memcpy(item.arguments, extra[1], wanted);
    return queue(stream, item);
}

/* CUlaunchConfig, and CUlaunchAttribute of 72 bytes: of those, only that which lets a launch overlap the one before. */
struct config { unsigned grid[3], block[3], shared; void *stream; int *attributes; unsigned count; };
static int overlapping;
int shim_overlapping(void) { return overlapping; }
int cuLaunchKernelEx(struct config *given, void *function, void **parameters, void **extra) {
    if (given->count > 1 || (given->count && (given->attributes[0] != 6 || given->attributes[2] != 1))) return BAD_VALUE;
    overlapping += given->count;
    return cuLaunchKernel(function, given->grid[0], given->grid[1], given->grid[2], given->block[0], given->block[1],
                          given->block[2], given->shared, given->stream, parameters, extra);
}

int cuMemAllocAsync(uint64_t *address, size_t size, void *stream) {
    NEED_CONTEXT;
    if (!known(stream, STREAM) || size == 0) return BAD_VALUE;
    if (known(stream, STREAM)->capturing) return CAPTURE_BAD;
    if (size > limit) return NO_MEMORY;
    block *made = malloc(sizeof *made);
    *made = (block){malloc(size), size, blocks, 1};
    memset(made->start, 0x5a, size);
    blocks = made;
    *address = (uint64_t)made->start;
    return OK;
}
int cuMemFreeAsync(uint64_t address, void *stream) {
    NEED_CONTEXT;
    if (!known(stream, STREAM)) return BAD_HANDLE;
    for (block **each = &blocks; *each; each = &(*each)->next)
        if ((*each)->start == (char *)address) {
            block *gone = *each;
            *each = gone->next;
            free(gone->start);
            free(gone);
            return OK;
        }
    return BAD_VALUE;
}
int cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
    NEED_CONTEXT;
    if (flags != 3 || size == 0) return BAD_VALUE;
    block *made = malloc(sizeof *made);
    *made = (block){malloc(size), size, blocks};
    blocks = made;
    *pointer = made->start;
    return OK;
}
int cuMemHostGetDevicePointer_v2(uint64_t *device, void *pointer, unsigned flags) {
    NEED_CONTEXT;
    *device = (uint64_t)pointer;
    return inside((uint64_t)pointer, 1) && flags == 0 ? OK : BAD_VALUE;
}
int cuMemFreeHost(void *pointer) {
    NEED_CONTEXT;
    for (block **each = &blocks; *each; each = &(*each)->next)
        if ((*each)->start == (char *)pointer) {
            block *gone = *each;
            *each = gone->next;
            free(gone->start);
            free(gone);
            return OK;
        }
    return BAD_VALUE;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) { return cuMemHostAlloc((void **)address, size, 3); }
int cuMemFree_v2(uint64_t address) { return cuMemFreeHost((void *)address); }
int cuDeviceGetDefaultMemPool(void **pool, int device) { static handle it = {POOL}; *pool = &it; return OK; }
int cuMemPoolSetAttribute(void *pool, int attribute, void *value) { return attribute == 4 ? OK : BAD_VALUE; }
int cuMemPoolTrimTo(void *pool, size_t keep) { return OK; }
int cuMemcpyHtoDAsync_v2(uint64_t to, void *from, size_t size, void *stream) {
    NEED_CONTEXT;
    return queue(stream, (work){.kind = 0, .to = to, .from = (uint64_t)from, .size = size});
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    NEED_CONTEXT;
    return queue(stream, (work){.kind = 1, .to = (uint64_t)to, .from = from, .size = size});
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
    NEED_CONTEXT;
    return queue(stream, (work){.kind = 4, .to = to, .from = from, .size = size});
}
int cuMemcpy2DAsync_v2(const size_t *copy, void *stream) {
    NEED_CONTEXT;
    /* Words of CUDA_MEMCPY2D: x, y, type, host, device, array, pitch of the source, the same of the target, width, rows. */
    if (copy[0] || copy[1] || (int)copy[2] != 2 || copy[7] || copy[8] || (int)copy[9] != 2) return BAD_VALUE;
    if (copy[14] > copy[6] || copy[14] > copy[13]) return BAD_VALUE;
    for (size_t row = 0; row < copy[15]; row++) {
        int code = queue(stream, (work){.kind = 4, .to = copy[11] + row * copy[13], .from = copy[4] + row * copy[6],
                                        .size = copy[14]});
        if (code) return code;
    }
    return OK;
}
int cuMemsetD32Async(uint64_t to, unsigned word, size_t count, void *stream) {
    NEED_CONTEXT;
    if (to % 4 || !inside(to, 4 * count)) return BAD_ADDRESS;
    for (size_t at = 0; at < count; at++) ((unsigned *)to)[at] = word;
    return OK;
}
static int pooled(uint64_t address) {
    for (block *each = blocks; each; each = each->next)
        if ((char *)address >= each->start && (char *)address < each->start + each->size) return each->pooled;
    return 0;
}
/* CUstreamBatchMemOpParams: writes of 64 bits (5) only. An H200's driver refuses memory of pools. */
int cuStreamBatchMemOp_v2(void *stream, unsigned count, uint64_t (*given)[6], unsigned flags) {
    NEED_CONTEXT;
    if (stream && !known(stream, STREAM)) return BAD_HANDLE;
    if (!count || flags || !stream_writes) return BAD_VALUE;
    for (unsigned one = 0; one < count; one++) {
        if ((unsigned)given[one][0] != 5 || (unsigned)given[one][3]) return BAD_VALUE;
        if (given[one][1] % 8 || !inside(given[one][1], 8)) return BAD_ADDRESS;
        if (pooled(given[one][1])) return BAD_VALUE;
    }
    for (unsigned one = 0; one < count; one++) *(uint64_t *)given[one][1] = given[one][2];
    return OK;
}
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t size, void *stream) {
    NEED_CONTEXT;
    if (!inside(to, size)) return BAD_ADDRESS;
    memset((void *)to, byte, size);
    return OK;
}

int cuStreamCreate(void **stream, unsigned flags) { NEED_CONTEXT; *stream = make(STREAM); return flags == 1 ? OK : BAD_VALUE; }
int cuStreamDestroy_v2(void *stream) { NEED_CONTEXT; return release(stream, STREAM); }
int cuStreamSynchronize(void *stream) {
    NEED_CONTEXT;
    handle *found = known(stream, STREAM);
    return !found ? BAD_HANDLE : found->capturing ? CAPTURE_BAD : OK;
}
int cuStreamQuery(void *stream) { NEED_CONTEXT; return known(stream, STREAM) ? OK : BAD_HANDLE; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    NEED_CONTEXT;
    return known(stream, STREAM) && known(event, EVENT) ? OK : BAD_HANDLE;
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    NEED_CONTEXT;
    handle *found = known(stream, STREAM);
    if (!found) return BAD_HANDLE;
    if (found->capturing || mode != 1) return CAPTURE_BAD;
    found->capturing = 1, found->first = found->last = NULL;
    return OK;
}
int cuStreamEndCapture(void *stream, void **graph) {
    NEED_CONTEXT;
    handle *found = known(stream, STREAM);
    if (!found || !found->capturing) return CAPTURE_BAD;
    handle *made = make(GRAPH);
    made->first = found->first;
    found->capturing = 0;
    *graph = made;
    return OK;
}
int cuEventCreate(void **event, unsigned flags) { NEED_CONTEXT; *event = make(EVENT); return OK; }
int cuEventDestroy_v2(void *event) { NEED_CONTEXT; return release(event, EVENT); }
int cuEventRecord(void *event, void *stream) {
    NEED_CONTEXT;
    return known(event, EVENT) && known(stream, STREAM) ? OK : BAD_HANDLE;
}
int cuEventSynchronize(void *event) { NEED_CONTEXT; return known(event, EVENT) ? OK : BAD_HANDLE; }
int cuEventQuery(void *event) { NEED_CONTEXT; return known(event, EVENT) ? NOT_READY : BAD_HANDLE; }
int cuEventElapsedTime(float *ms, void *first, void *last) {
    NEED_CONTEXT;
    *ms = 1.5f;
    return known(first, EVENT) && known(last, EVENT) ? OK : BAD_HANDLE;
}
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    NEED_CONTEXT;
    handle *found = known(graph, GRAPH), *made = make(EXECUTABLE);
    if (!found) return BAD_HANDLE;
    made->first = found->first;
    *executable = made;
    return OK;
}
int cuGraphLaunch(void *executable, void *stream) {
    NEED_CONTEXT;
    handle *found = known(executable, EXECUTABLE);
    if (!found || !known(stream, STREAM)) return BAD_HANDLE;
    for (work *each = found->first; each; each = each->next) {
        int code = perform(each);
        if (code) return code;
    }
    return OK;
}
int cuGraphUpload(void *executable, void *stream) {
    NEED_CONTEXT;
    return known(executable, EXECUTABLE) && known(stream, STREAM) ? OK : BAD_HANDLE;
}
int cuGraphDestroy(void *graph) { NEED_CONTEXT; return release(graph, GRAPH); }
int cuGraphExecDestroy(void *executable) { NEED_CONTEXT; return release(executable, EXECUTABLE); }
