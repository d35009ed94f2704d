// Changes what a call means while it is decided: its path in memory, links on its way, its descriptor, its directory. Arguments:
// a directory in which bits may be set, one in which not, and how often. Prints how often a call went through.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *own, *view;
static char own_file[256], view_file[256];
static _Alignas(64) char flipped[256];
static char links[2][256];
static int held, fds[2], dirs[2];
static atomic_int ended;

static void make(char *into, const char *dir, const char *name) {
    snprintf(into, 256, "%s/%s", dir, name);
    if (access(into, F_OK))
        close(open(into, O_CREAT | O_RDWR, 0755));
}

static void *flip_memory(void *nothing) {
    for (unsigned i = 0; !ended; i++)
        memcpy(flipped, i % 2 ? own_file : view_file, sizeof flipped);
    return nothing;
}

static void *flip_links(void *nothing) {
    while (!ended)
        syscall(SYS_renameat2, AT_FDCWD, links[0], AT_FDCWD, links[1], RENAME_EXCHANGE);
    return nothing;
}

static void *flip_descriptor(void *nothing) {
    for (unsigned i = 0; !ended; i++)
        dup2(fds[i % 2], held);
    return nothing;
}

static void *flip_directory(void *nothing) {
    for (unsigned i = 0; !ended; i++)
        if (fchdir(dirs[i % 2]))
            return nothing;
    return nothing;
}

int main(int argc, char **argv) {
    (void)argc;
    own = argv[1], view = argv[2];
    int rounds = atoi(argv[3]), done = 0, made = 0;
    make(own_file, own, "file"), make(view_file, view, "file");
    fds[0] = open(own_file, O_RDWR), fds[1] = open(view_file, O_RDWR), held = dup(fds[0]);
    dirs[0] = open(own, O_PATH), dirs[1] = open(view, O_PATH);
    for (int i = 0; i < 2; i++) {
        snprintf(links[i], 256, "%s/link%d", own, i);
        unlink(links[i]);
        if (symlink(i ? view : own, links[i]))
            perror(links[i]);
    }
    void *(*flips[])(void *) = {flip_memory, flip_links, flip_descriptor, flip_directory};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, flips[i], NULL);
    char through[300], name[300];
    snprintf(through, sizeof through, "%s/file", links[0]);
    for (int i = 0; i < rounds; i++) {
        done += chmod(flipped, 04755) == 0;
        done += chmod(through, 04755) == 0;
        done += fchmod(held, 04755) == 0;
        done += chmod("file", 04755) == 0;
        snprintf(name, sizeof name, "%s/made%d", links[0], i);
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 04755);
        made += fd >= 0;
        close(fd);
    }
    ended = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%d set, %d made\n", done, made);
}
