/* Code objects, functions and launches. */
#include "shim.h"

#include <elf.h>
#include <string.h>

enum { MAX_LANES = 1024, LDS_BYTES = 160 * 1024 };

/* The end of a linked object: HIP gets no length and reads it from the headers too. */
static size_t image_size(const Elf64_Ehdr *head) {
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64)
        return 0;
    size_t end = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
    const Elf64_Shdr *sections = (const void *)((const char *)head + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++)
        if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > end)
            end = sections[i].sh_offset + sections[i].sh_size;
    return end;
}

API int hipModuleLoadData(void **module, const void *image) {
    int id = 0, code = enter(__func__);
    if (code == SUCCESS)
        code = module == NULL || image == NULL ? INVALID_VALUE : unsafe();
    size_t size = code == SUCCESS ? image_size(image) : 0;
    if (code == SUCCESS && size == 0)
        code = INVALID_IMAGE;
    if (code == SUCCESS)
        code = simulator.load(image, size, &id);
    if (code == SUCCESS) {
        struct object *made = make(MODULE);
        code = made == NULL ? OUT_OF_MEMORY : SUCCESS;
        if (made != NULL)
            made->id = id;
        *module = made;
    }
    return leave(code);
}

API int hipModuleUnload(void *handle) {
    int code = enter(__func__);
    struct object *module = code == SUCCESS ? find(handle, MODULE) : NULL;
    if (code == SUCCESS && module == NULL)
        code = INVALID_HANDLE;
    if (code == SUCCESS)
        drop(module);
    return leave(code);
}

API int hipModuleGetFunction(void **function, void *handle, const char *name) {
    int code = enter(__func__);
    struct object *module = code == SUCCESS ? find(handle, MODULE) : NULL;
    if (code == SUCCESS && (function == NULL || name == NULL || *name == 0))
        code = INVALID_VALUE;
    if (code == SUCCESS && module == NULL)
        code = INVALID_HANDLE;
    struct limits limits = {0};
    int id = 0;
    if (code == SUCCESS)
        code = simulator.find(module->id, name, &id, &limits);
    if (code == SUCCESS) {
        struct object *made = make(FUNCTION);
        code = made == NULL ? OUT_OF_MEMORY : SUCCESS;
        if (made != NULL) {
            made->id = id;
            made->module = module;
            made->limits = limits;
        }
        *function = made;
    }
    return leave(code);
}

/* In the order and with the results of HIP 6 where its documentation does not say. */
static int check_size(const struct limits *limits, const uint32_t *grid, const uint32_t *block, unsigned shared) {
    uint64_t lanes = 1;
    for (int axis = 0; axis < 3; axis++) {
        if (block[axis] == 0)
            return INVALID_CONFIGURATION;
        if (grid[axis] == 0)
            return INVALID_VALUE;
        if ((uint64_t)grid[axis] * block[axis] > UINT32_MAX)
            return INVALID_CONFIGURATION;
        lanes *= block[axis];
        if (lanes > MAX_LANES)
            return INVALID_VALUE;
    }
    if ((uint64_t)shared + limits->lds_bytes > LDS_BYTES)
        return INVALID_VALUE;
    if (lanes > limits->max_lanes || (limits->block != 0 && lanes != limits->block))
        return LAUNCH_FAILURE;
    return SUCCESS;
}

/* The argument block must be as large as the kernel's metadata says, or that rounded up to 16 bytes. */
static int check_arguments(const struct limits *limits, void **parameters, void **extra) {
    if (parameters != NULL)
        return extra != NULL ? INVALID_VALUE : NOT_SUPPORTED;
    if (extra == NULL)
        return limits->kernarg_bytes == 0 ? SUCCESS : INVALID_VALUE;
    if (extra[0] != (void *)1 || extra[1] == NULL || extra[2] != (void *)2 || extra[3] == NULL || extra[4] != (void *)3)
        return INVALID_VALUE;
    size_t size = *(const size_t *)extra[3], whole = (limits->kernarg_bytes + 15) / 16 * 16;
    return size < limits->kernarg_bytes || size > whole ? INVALID_VALUE : SUCCESS;
}

API int hipModuleLaunchKernel(
    void *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, void *stream_handle, void **parameters, void **extra
) {
    int code = enter(__func__);
    struct object *function = code == SUCCESS ? find(handle, FUNCTION) : NULL;
    struct object *stream = code == SUCCESS ? stream_of(stream_handle) : NULL;
    if (code == SUCCESS && (function == NULL || !function->module->alive || stream == NULL))
        code = INVALID_HANDLE;
    struct command launch = {
        .action = KERNEL,
        .function = function,
        .grid = {grid_x, grid_y, grid_z},
        .block = {block_x, block_y, block_z},
    };
    if (code == SUCCESS)
        code = check_size(&function->limits, launch.grid, launch.block, shared);
    if (code == SUCCESS)
        code = check_arguments(&function->limits, parameters, extra);
    if (code == SUCCESS) {
        char padded[4096] = {0};
        size_t size = function->limits.kernarg_bytes;
        if (size > sizeof padded)
            return leave(INVALID_VALUE);
        if (size > 0)
            memcpy(padded, extra[1], size);
        launch.arguments = padded;
        code = submit(stream, &launch);
    }
    return leave(code);
}
