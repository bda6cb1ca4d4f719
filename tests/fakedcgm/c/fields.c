/* The fields and the return codes that DCGM knows, and the fake's names. */
#include "fake.h"

static const Field fields[DCGM_FI_MAX_FIELDS] = {
#define F(id, type, level, global, profiling) [id] = {type, level, global, profiling},
#include "fields.def"
#undef F
};

const Field *field_by_id(unsigned id) { return id < DCGM_FI_MAX_FIELDS && fields[id].type ? &fields[id] : NULL; }

static const char *const fn_names[FN_COUNT] = {
    [FN_ANY] = "*",
#define FUNCTION(name) [FN_##name] = #name,
#include "functions.def"
#undef FUNCTION
};

static const char *const gauge_names[GAUGE_COUNT] = {
    "inflight", "inits", "handles", "groups", "field_groups", "watches", "overlaps",
};

const Identity identity = {
    "fakedcgm", "FAKEDCGM_SCENARIO", "FAKEDCGM_COUNTS", fn_names, FN_COUNT, gauge_names, GAUGE_COUNT,
};

Fn fn_ruled_by(Fn fn) { return fn; }

EXPORT const char *errorString(dcgmReturn_t code) {
    count_call(FN_errorString, -1);
    switch ((int)code) {
#define R(name, number) \
    case number: return "fakedcgm: " #name;
#include "returns.def"
#undef R
    }
    return NULL;
}
