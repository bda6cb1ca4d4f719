/* The functions whose answers come from the scenario as they stand, and all names. */
#include <stdlib.h>
#include <string.h>
#include "fake.h"

const char *const fn_names[FN_COUNT] = {
    [FN_ANY] = "*",
#define ASK(name, ...) [FN_##name] = #name,
#define VERSIONED(name, ...) [FN_##name] = #name,
#define BY_HAND(name) [FN_##name] = #name,
#include "functions.def"
#undef ASK
#undef VERSIONED
#undef BY_HAND
};

static Fn sorted[FN_COUNT];

static int by_name(const void *a, const void *b) { return strcmp(fn_names[*(const Fn *)a], fn_names[*(const Fn *)b]); }

__attribute__((constructor)) static void sort_names(void) {
    for (int i = 0; i < FN_COUNT; i++) sorted[i] = (Fn)i;
    qsort(sorted, FN_COUNT, sizeof *sorted, by_name);
}

Fn fn_by_name(const char *name, size_t length) {
    int low = 0, high = FN_COUNT - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        const char *candidate = fn_names[sorted[middle]];
        int order = strncmp(name, candidate, length);
        if (order == 0 && candidate[length]) order = -1;
        if (order == 0) return sorted[middle];
        if (order < 0) high = middle - 1;
        else low = middle + 1;
    }
    return FN_COUNT;
}

#define ASK(name, wants, params, args, ...)                                             \
    EXPORT nvmlReturn_t name params {                                                   \
        const Out outs[] = {__VA_ARGS__};                                               \
        return answer(FN_##name, wants, device, args, outs, (int)COUNT_OF(outs));       \
    }
#define VERSIONED(name, wants, params, version_at, expected, args, ...)                 \
    EXPORT nvmlReturn_t name params {                                                   \
        if (!a) return NVML_ERROR_INVALID_ARGUMENT;                                     \
        if (*(version_at) != (expected)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;   \
        const Out outs[] = {__VA_ARGS__};                                               \
        return answer(FN_##name, wants, device, args, outs, (int)COUNT_OF(outs));       \
    }
#define BY_HAND(name)
#include "functions.def"
