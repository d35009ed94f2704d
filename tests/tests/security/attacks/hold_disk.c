// Keeps its own requests to the disk waiting behind each other, and makes others wait for them: `directory` lists a directory into
// memory that has to be read from the disk first, while the kernel holds the directory's lock; `pages` asks for a file again and
// again that the machine drops from its memory, while the kernel holds the pages' locks.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { QUEUE = 24, PIECE = 1 << 20, LARGE = 4 * PIECE, SLOW = 1 << 20, LIST = 128 << 10 };

static const char *large = "/var/tmp/large", *slow = "/var/tmp/slow";

static void make(const char *name, size_t size) {
    int fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0644);
    char *bytes = malloc(PIECE);
    memset(bytes, 7, PIECE);
    for (size_t at = 0; at < size; at += PIECE)
        if (write(fd, bytes, PIECE) != PIECE)
            exit(3);
    fsync(fd);
    close(fd);
    free(bytes);
}

static void *fill_the_queue(void *nothing) {
    void *bytes;
    int fd = open(large, O_RDONLY | O_DIRECT);
    if (fd < 0 || posix_memalign(&bytes, 4096, PIECE))
        exit(4);
    for (off_t at = 0;; at = (at + PIECE) % LARGE)
        if (pread(fd, bytes, PIECE, at) < 0)
            exit(5);
    return nothing;
}

static void hold_directory(const char *name) {
    int dir = open(name, O_RDONLY | O_DIRECTORY), fd = open(slow, O_RDWR), past_memory = open(slow, O_RDWR | O_DIRECT);
    void *bytes;
    char *map = mmap(0, SLOW, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (dir < 0 || past_memory < 0 || map == MAP_FAILED || posix_memalign(&bytes, 4096, LIST))
        exit(6);
    memset(bytes, 7, LIST);
    madvise(map, SLOW, MADV_RANDOM);
    for (int round = 0;; round++) {
        off_t at = round * LIST % SLOW;
        // What is written past the memory is not there any more.
        if (pwrite(past_memory, bytes, LIST, at) != LIST)
            exit(9);
        lseek(dir, 0, SEEK_SET);
        if (syscall(SYS_getdents64, dir, map + at, LIST) <= 0)
            exit(7);
    }
}

static void hold_pages(const char *name) {
    struct stat about;
    int fd = open(name, O_RDONLY);
    if (fd < 0 || fstat(fd, &about))
        exit(8);
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    for (;; usleep(20000)) {
        for (off_t at = 0; at < about.st_size; at += LIST)
            readahead(fd, at, LIST);
    }
}

// The last word is a mark, by which it is found from outside.
int main(int count, char **words) {
    if (count < 4)
        return 2;
    make(large, LARGE);
    make(slow, SLOW);
    puts("begun");
    fflush(stdout);
    for (int i = 0; i < QUEUE; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, fill_the_queue, 0))
            return 3;
    }
    if (!strcmp(words[1], "directory"))
        hold_directory(words[2]);
    hold_pages(words[2]);
}
