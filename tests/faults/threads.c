/* Preloaded: lets a process start only so many more threads, as a limit on processes (ulimit -u, pids.max) would.
 *
 * The file named by FAKE_THREADS holds the number; it is read each time. No such file: no limit.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_int started;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    const char *path = getenv("FAKE_THREADS");
    FILE *file = path ? fopen(path, "r") : NULL;
    int most = 0;
    if (file) {
        int found = fscanf(file, "%d", &most);
        fclose(file);
        if (found == 1 && atomic_load(&started) >= most)
            return EAGAIN;
    }
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_create");
    int failure = real(thread, attributes, run, argument);
    if (!failure)
        atomic_fetch_add(&started, 1);
    return failure;
}
