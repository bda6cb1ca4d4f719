/* Which scenario holds now: the file is looked at before every call and swapped as a whole. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fakelib.h"

static pthread_mutex_t swap_lock = PTHREAD_MUTEX_INITIALIZER; /* `current`; held for nanoseconds */
static pthread_mutex_t read_lock = PTHREAD_MUTEX_INITIALIZER; /* one reader of the file at a time */
static Scenario *current;
static _Atomic(const char *) used_path; /* never freed, so that a call may look at it without a lock */
static _Atomic uint64_t checked_at;

static const char *wanted_path(void) {
    const char *path = atomic_load(&used_path);
    return path ? path : getenv(identity.scenario_variable);
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void scenario_hold(Scenario *s) { atomic_fetch_add(&held(s)->refs, 1); }

void scenario_release(Scenario *s) {
    if (s && atomic_fetch_sub(&held(s)->refs, 1) == 1) scenario_free(s);
}

static bool is_current(const Held *s, const char *path, const struct stat *st) {
    return s && s->inode == st->st_ino && s->size == (uint64_t)st->st_size && s->mtime.tv_sec == st->st_mtim.tv_sec &&
           s->mtime.tv_nsec == st->st_mtim.tv_nsec && (s->path == path || strcmp(s->path, path) == 0);
}

static Scenario *hold_current(const char *path, const struct stat *st) {
    pthread_mutex_lock(&swap_lock);
    Scenario *s = current && (!st || is_current(held(current), path, st)) ? current : NULL;
    if (s) scenario_hold(s);
    pthread_mutex_unlock(&swap_lock);
    return s;
}

static char *content_of(int fd, size_t size) {
    char *content = malloc(size + 1);
    size_t got = 0;
    if (!content) abort();
    while (got < size) {
        ssize_t n = read(fd, content + got, size - got);
        if (n <= 0) break;
        got += (size_t)n;
    }
    content[got] = 0;
    return content;
}

static Scenario *read_again(const char *path) {
    struct stat st;
    pthread_mutex_lock(&read_lock);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Scenario *s = NULL;
    if (fd >= 0 && fstat(fd, &st) == 0) {
        s = hold_current(path, &st); /* somebody else was first */
        if (!s) {
            char *content = content_of(fd, (size_t)st.st_size);
            s = scenario_parse(path, content);
            free(content);
            held(s)->mtime = st.st_mtim;
            held(s)->inode = st.st_ino;
            held(s)->size = (uint64_t)st.st_size;
            held(s)->path = strcpy(scenario_memory(s, strlen(path) + 1), path);
            atomic_init(&held(s)->refs, 2); /* ours and the caller's */
            pthread_mutex_lock(&swap_lock);
            Scenario *old = current;
            current = s;
            pthread_mutex_unlock(&swap_lock);
            scenario_release(old);
        }
    }
    if (fd >= 0) close(fd);
    pthread_mutex_unlock(&read_lock);
    return s ? s : hold_current(path, NULL);
}

Scenario *scenario_acquire(void) {
    const char *path = wanted_path();
    struct stat st;
    if (!path) return NULL;
    if (atomic_load(&checked_at)) { /* the scenario asked to be looked at rarely */
        Scenario *s = hold_current(path, NULL);
        if (s && held(s)->check_us && now_us() - atomic_load(&checked_at) < held(s)->check_us) return s;
        if (s) scenario_release(s);
    }
    if (stat(path, &st) != 0) return hold_current(path, NULL);
    Scenario *s = hold_current(path, &st);
    if (!s) s = read_again(path);
    if (s) atomic_store(&checked_at, held(s)->check_us ? now_us() : 0);
    return s;
}

/* Use this file from now on; NULL goes back to the fake's variable. Returns 0 when there is a scenario. */
EXPORT int fakelib_use(const char *path) {
    const char *before = atomic_load(&used_path);
    if (!before || !path || strcmp(before, path)) {
        path_changed();
        atomic_store(&used_path, path ? strdup(path) : NULL);
    }
    atomic_store(&checked_at, 0);
    Scenario *s = scenario_acquire();
    scenario_release(s);
    return s ? 0 : -1;
}
