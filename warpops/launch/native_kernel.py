"""The source of the function that ``native.py`` is about, and the kernel that tells its address."""

import warp as wp

_SNIPPET = """
    #ifndef __CUDACC__  // wp.force_load() builds every module for every device
    struct Start {
        uint64_t entry, data_ptr, item, none, save, restore, raise, uncertain;
        uint32_t size, second, places, copies, pairs, apart, driver, bounds, packed, unused;
    };
    struct Pair { uint64_t left, bytes, right, more; };
    struct Driver {  // where the entry is Warp's to the CUDA driver
        uint64_t context, function, threads;
        int32_t max_blocks, block_dim, grid_stride, cluster_dim, shared_memory;
        uint32_t arguments;
        uint64_t captures, size, call, stream_of, device, pointer, release, failed;
    };
    typedef void* (*DataPtr)(void*);
    typedef void* (*Item)(void*, int64_t);
    typedef void (*Entry)(const void*, void*);
    typedef void (*Adjoint)(const void*, void*, void*);
    typedef void* (*Save)();
    typedef void (*Restore)(void*);
    typedef void (*Raise)(void*);
    typedef int64_t (*Size)(void*);
    typedef void* (*Call)(void*, void*);
    typedef void* (*Pointer)(void*);
    typedef void (*Release)(void*);
    typedef uint64_t (*Cuda)(uint64_t, uint64_t, uint64_t, int, int, int, int, int, void**, void*, void*);
    void (*launch)(void*, const char*, const char*) = [](void* tensors, const char* bytes, const char* numbers) {
        const Start* start = (const Start*)bytes;
        const uint32_t* place = (const uint32_t*)(bytes + sizeof(Start));
        const char* packed = bytes + start->packed;
        char* made = (char*)__builtin_alloca(start->size);
        for (uint32_t k = 0; k < start->size; ++k) made[k] = packed[k];
        for (uint32_t k = 0; k < start->places; ++k, place += 2) {
            void* tensor = ((Item)start->item)(tensors, place[0]);
            if ((uint64_t)tensor == start->none) continue;
            void* memory = ((DataPtr)start->data_ptr)(tensor);
            if (!memory) {
                ((Raise)start->raise)((void*)start->uncertain);
                return;
            }
            *(char**)(made + place[1]) += (uint64_t)memory;
        }
        for (uint32_t k = 0; k < start->copies; ++k, place += 3)
            for (uint32_t b = 0; b < place[2]; ++b) made[place[1] + b] = numbers[place[0] + b];
        const Pair* pair = (const Pair*)(bytes + start->apart);
        for (uint32_t k = 0; k < start->pairs; ++k, ++pair) {
            const char *left = *(char**)(made + pair->left), *right = *(char**)(made + pair->right);
            if (left < right + pair->more && right < left + pair->bytes) {
                ((Raise)start->raise)((void*)start->uncertain);
                return;
            }
        }
        const Driver* driver = start->driver ? (const Driver*)(bytes + start->driver) : 0;
        if (driver) {
            if (((Size)driver->size)((void*)driver->captures) != 0) {
                ((Raise)start->raise)((void*)start->uncertain);
                return;
            }
            void* handle = ((Call)driver->call)((void*)driver->stream_of, (void*)driver->device);
            if (!handle) return;
            void* stream = ((Pointer)driver->pointer)(handle);
            ((Release)driver->release)(handle);
            const uint32_t* offset = (const uint32_t*)(driver + 1);
            void** argument = (void**)__builtin_alloca(sizeof(void*) * (1 + driver->arguments));
            argument[0] = (void*)(bytes + start->bounds);
            for (uint32_t k = 0; k < driver->arguments; ++k) argument[k + 1] = made + offset[k];
            void* state = ((Save)start->save)();
            uint64_t error = ((Cuda)start->entry)(
                driver->context, driver->function, driver->threads, driver->max_blocks, driver->block_dim,
                driver->grid_stride, driver->cluster_dim, driver->shared_memory, argument, stream, 0);
            ((Restore)start->restore)(state);
            if (error) ((Call)driver->call)((void*)driver->failed, 0);
            return;
        }
        void* state = ((Save)start->save)();
        if (start->second) ((Adjoint)start->entry)(bytes + start->bounds, made, made + start->second);
        else ((Entry)start->entry)(bytes + start->bounds, made);
        ((Restore)start->restore)(state);
    };
    address[0] = (uint64_t)launch;
    #endif
"""


@wp.func_native(_SNIPPET)  # type: ignore[untyped-decorator]
def _tell(address: wp.array[wp.uint64]) -> None: ...


@wp.kernel(enable_backward=False)  # type: ignore[untyped-decorator]
def tell_address(address: wp.array[wp.uint64]) -> None:
    """Write the function's address."""
    _tell(address)
