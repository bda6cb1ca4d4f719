/* Rules for functions, which follow the word that says for whom they hold:
 *
 *   FUNCTION = VALUES        the answer; several outputs are separated by blanks
 *   FUNCTION[1,0] = VALUES   the answer for these arguments
 *   FUNCTION ! 15            fails with this code ([args] may be given here and below)
 *   FUNCTION delay_us 20000  takes this long
 *   FUNCTION hang            blocks until the scenario has no hang here or fakelib_release() is called
 *   FUNCTION hang 2          so do the first two calls after this file was read
 *   FUNCTION crash           takes the whole process along, as a defect of the library does (SIGSEGV)
 *   * hang                   the same for every function (also `!`, delay_us and crash)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include "fakelib.h"

enum { POLL_US = 5000 };

static bool same_args(const Args *a, const Args *b) {
    return a->n == b->n && memcmp(a->v, b->v, sizeof(uint32_t) * (size_t)a->n) == 0;
}

Entry *row_find(Entry *row, const Args *args) {
    for (Entry *e = row; e; e = e->next)
        if (same_args(&e->args, args)) return e;
    return NULL;
}

Entry *row_make(Scenario *s, Entry **row, const Args *args) {
    Entry *found = row_find(*row, args);
    if (found) return found;
    Entry *e = scenario_memory(s, sizeof *e), **end = row;
    e->args = *args;
    while (*end) end = &(*end)->next;
    *end = e;
    return e;
}

void entry_add(Scenario *s, Entry *e, Value v) {
    if (e->n_values == e->room) {
        int room = e->room ? e->room * 2 : 4;
        Value *values = scenario_memory(s, sizeof *values * (size_t)room);
        if (e->n_values) memcpy(values, e->values, sizeof *values * (size_t)e->n_values);
        e->values = values;
        e->room = room;
    }
    e->values[e->n_values++] = v;
    e->has_values = true;
}

Fn function(Reader *r) {
    blanks(r);
    if (*r->at == '*') {
        r->at++;
        return FN_ANY;
    }
    size_t length = strcspn(r->at, " \t[");
    Fn fn = fn_by_name(r->at, length);
    if (fn == identity.fn_count) refuse(r, "the fake has no such function");
    r->at += length;
    return fn_ruled_by(fn);
}

void function_line(Reader *r, Entry **rows) {
    Fn fn = function(r);
    Args args = NO_ARGS;
    if (*r->at == '[') {
        r->at++;
        do {
            if (args.n == (int)COUNT_OF(args.v)) refuse(r, "too many arguments");
            args.v[args.n++] = (uint32_t)number(r);
        } while (mark(r, ','));
        if (!mark(r, ']')) refuse(r, "] is wanted");
    }
    Entry *e = row_make(r->scenario, &rows[fn], &args);
    if (mark(r, '=')) {
        e->has_values = true;
        e->n_values = 0;
        while (!ended(r)) entry_add(r->scenario, e, value(r));
    } else if (mark(r, '!')) {
        e->has_error = true;
        e->error = (int)number(r);
    } else if (word(r, "delay_us")) {
        e->delay_us = number(r);
    } else if (word(r, "hang")) {
        e->hang = true;
        if (!ended(r)) e->hang_calls = (int)number(r);
    } else if (word(r, "crash")) {
        e->crash = true;
    } else {
        refuse(r, "=, !, delay_us, hang or crash is wanted");
    }
}

void rules_add(Rules *r, Entry *const *rows, Fn fn, const Args *args) {
    Entry *candidates[] = {
        rows[fn] ? row_find(rows[fn], args) : NULL,
        args->n && rows[fn] ? row_find(rows[fn], &NO_ARGS) : NULL,
        rows[FN_ANY],
    };
    for (size_t i = 0; i < COUNT_OF(candidates); i++)
        if (candidates[i]) r->rules[r->n++] = candidates[i];
}

static int count_met(Rules *r) {
    int first = INT_MAX;
    for (int i = 0; i < r->n; i++)
        if (r->rules[i]->hang) {
            int met = atomic_fetch_add(&r->rules[i]->met, 1);
            if (met < first) first = met;
        }
    return first == INT_MAX ? 0 : first;
}

Hang rules_suffered(Rules *r) {
    uint64_t delay_us = 0;
    for (int i = 0; i < r->n && !delay_us; i++) delay_us = r->rules[i]->delay_us;
    if (delay_us) pause_us(delay_us);
    for (int i = 0; i < r->n; i++)
        if (r->rules[i]->crash) {
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        }
    return (Hang){.met = count_met(r), .generation = atomic_load(&release_generation)};
}

bool rules_hold(const Rules *r, const Hang *h) {
    for (int i = 0; i < r->n && h->generation == atomic_load(&release_generation); i++)
        if (r->rules[i]->hang && (!r->rules[i]->hang_calls || h->met < r->rules[i]->hang_calls)) {
            pause_us(POLL_US);
            return true;
        }
    return false;
}

int rules_error(const Rules *r) {
    for (int i = 0; i < r->n; i++)
        if (r->rules[i]->has_error) return r->rules[i]->error;
    return 0;
}

void pause_us(uint64_t us) {
    struct timespec left = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {}
}
