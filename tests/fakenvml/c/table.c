/* The functions whose answers come from the scenario as they stand, and all names. */
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

static const char *const gauge_names[GAUGE_COUNT] = {"inflight", "inits", "samples", "event_sets"};

const Identity identity = {
    "fakenvml", "FAKENVML_SCENARIO", "FAKENVML_COUNTS", fn_names, FN_COUNT, gauge_names, GAUGE_COUNT,
};

Fn fn_ruled_by(Fn fn) { return fn == FN_nvmlInitWithFlags ? FN_nvmlInit_v2 : fn; }

void path_changed(void) { events_restart(); } /* another test: its events are numbered anew */

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
