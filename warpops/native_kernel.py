"""The source of the function that ``native.py`` is about, and the kernel that tells its address."""

import warp as wp

_SNIPPET = """
    #ifndef __CUDACC__  // wp.force_load() builds every module for every device
    struct Start {
        uint64_t entry, data_ptr, item, none, save, restore, raise, uncertain;
        uint32_t size, second, places, copies, pairs, apart, bounds, packed;
    };
    struct Pair { uint64_t left, bytes, right, more; };
    typedef void* (*DataPtr)(void*);
    typedef void* (*Item)(void*, int64_t);
    typedef void (*Entry)(const void*, void*);
    typedef void (*Adjoint)(const void*, void*, void*);
    typedef void* (*Save)();
    typedef void (*Restore)(void*);
    typedef void (*Raise)(void*);
    void (*launch)(void*, const char*, const char*) = [](void* tensors, const char* bytes, const char* numbers) {
        const Start* start = (const Start*)bytes;
        const uint32_t* place = (const uint32_t*)(bytes + sizeof(Start));
        const char* packed = bytes + start->packed;
        char* made = (char*)__builtin_alloca(start->size);
        for (uint32_t k = 0; k < start->size; ++k) made[k] = packed[k];
        for (uint32_t k = 0; k < start->places; ++k, place += 2) {
            void* tensor = ((Item)start->item)(tensors, place[0]);
            if ((uint64_t)tensor != start->none) *(void**)(made + place[1]) = ((DataPtr)start->data_ptr)(tensor);
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
