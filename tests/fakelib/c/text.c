/* The text of a scenario: one fact a line. A line that is not understood aborts the process with its number.
 *
 * A value is a whole number, a number with a point or exponent, or a "string" with \" \\ \n and \xNN.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fakelib.h"

struct Chunk {
    struct Chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void *scenario_memory(Scenario *s, size_t size) {
    Held *a = held(s);
    size = (size + 15) & ~(size_t)15;
    if (!a->chunks || a->chunks->size - a->chunks->used < size) {
        size_t room = size > 65536 ? size : 65536;
        struct Chunk *chunk = calloc(1, sizeof *chunk + room);
        if (!chunk) abort();
        chunk->next = a->chunks;
        chunk->size = room;
        a->chunks = chunk;
    }
    void *p = a->chunks->data + a->chunks->used;
    a->chunks->used += size;
    return p;
}

void scenario_free(Scenario *s) {
    for (struct Chunk *chunk = held(s)->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(s);
}

_Noreturn void refuse(const Reader *r, const char *why) {
    fprintf(stderr, "%s: %s:%d: %s near '%s'\n", identity.name, r->path, r->line, why, r->at ? r->at : "");
    abort();
}

void blanks(Reader *r) {
    while (*r->at == ' ' || *r->at == '\t') r->at++;
}

bool ended(Reader *r) {
    blanks(r);
    return *r->at == 0;
}

bool word(Reader *r, const char *expected) {
    blanks(r);
    size_t n = strlen(expected);
    if (strncmp(r->at, expected, n) != 0 || (r->at[n] != ' ' && r->at[n] != '\t' && r->at[n] != 0)) return false;
    r->at += n;
    return true;
}

bool mark(Reader *r, char expected) {
    blanks(r);
    if (*r->at != expected) return false;
    r->at++;
    return true;
}

uint64_t number(Reader *r) {
    blanks(r);
    char *end;
    errno = 0;
    uint64_t value = *r->at == '-' ? (uint64_t)strtoll(r->at, &end, 0) : strtoull(r->at, &end, 0);
    if (end == r->at || errno) refuse(r, "a whole number is wanted");
    r->at = end;
    return value;
}

uint32_t number_below(Reader *r, uint32_t below, const char *why) {
    uint64_t n = number(r);
    if (n >= below) refuse(r, why);
    return (uint32_t)n;
}

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static Value string(Reader *r) {
    if (!mark(r, '"')) refuse(r, "a string is wanted");
    char *start = scenario_memory(r->scenario, strlen(r->at) + 1), *to = start;
    for (;; r->at++) {
        char c = *r->at;
        if (!c) refuse(r, "the string has no end");
        if (c == '"') break;
        if (c == '\\') {
            c = *++r->at;
            if (c == 'n') c = '\n';
            else if (c == 'x') {
                int high = hex(r->at[1]), low = high < 0 ? -1 : hex(r->at[2]);
                if (low < 0) refuse(r, "\\x wants two hex digits");
                c = (char)(high << 4 | low);
                r->at += 2;
            } else if (c != '"' && c != '\\') refuse(r, "no such escape");
        }
        *to++ = c;
    }
    r->at++;
    *to = 0;
    return (Value){.kind = TEXT, .text = start, .length = (size_t)(to - start)};
}

const char *text(Reader *r) { return string(r).text; }

Value value(Reader *r) {
    blanks(r);
    if (*r->at == '"') return string(r);
    size_t length = strcspn(r->at, " \t");
    bool is_hex = r->at[0] == '0' && (r->at[1] == 'x' || r->at[1] == 'X');
    if (!is_hex && strcspn(r->at, ".eEni") < length) { /* 1.5, 1e9, nan, inf */
        char *end;
        double real = strtod(r->at, &end);
        if (end == r->at) refuse(r, "a number is wanted");
        r->at = end;
        return (Value){.kind = REAL, .real = real};
    }
    return (Value){.kind = NUMBER, .number = number(r)};
}

void read_lines(Reader *r, char *content, void (*line)(Reader *r)) {
    for (char *next = content; next;) {
        r->line++;
        r->at = strsep(&next, "\n");
        if (ended(r) || *r->at == '#') continue;
        line(r);
        if (!ended(r)) refuse(r, "something is left over");
    }
}
