// Holds a lock of the kernel for as long as the disk is slow: `pipe` the one of standard output, by writing to it from memory
// that has to be read from a file first; `inode` the one of a file, by one long write past the cache; `users` pages of the
// file of users, which are read again and again; `size` the one of a terminal's size, by asking for it. `try` shows that who takes
// from such a pipe waits.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 1024, AT_ONCE = 128 };

static const double LONG = 0.05;
static size_t page;

// A file of its own: what is written to it past the memory has to be read from the disk again.
static const char *slow_name = "/var/tmp/slow";
static void *fresh;

static int slow_file(void) {
    int fd = open(slow_name, O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (fd < 0 || posix_memalign(&fresh, 4096, AT_ONCE * page))
        exit(3);
    memset(fresh, 7, AT_ONCE * page);
    for (int at = 0; at < PAGES; at += AT_ONCE)
        if (write(fd, fresh, AT_ONCE * page) != (ssize_t)(AT_ONCE * page))
            exit(3);
    if (fsync(fd))
        exit(3);
    return fd;
}

static int past_memory(const char *name) {
    int fd = open(name, O_RDWR | O_DIRECT);
    if (fd < 0)
        exit(3);
    return fd;
}

static void drop(int past, int at, int pages) {
    if (pwrite(past, fresh, pages * page, (off_t)at * page) != (ssize_t)(pages * page))
        exit(5);
}

// Each page is read from the disk while the pipe is locked.
static void write_slowly(int fd, int to, int rounds) {
    int past = past_memory(slow_name);
    fcntl(to, F_SETPIPE_SZ, 2 * AT_ONCE * page);
    for (; rounds; rounds--)
        for (int at = 0; at + AT_ONCE <= PAGES; at += AT_ONCE) {
            drop(past, at, AT_ONCE);
            char *map = mmap(0, AT_ONCE * page, PROT_READ, MAP_SHARED, fd, at * page);
            madvise(map, AT_ONCE * page, MADV_RANDOM);
            if (map == MAP_FAILED || write(to, map, AT_ONCE * page) < 0)
                exit(4);
            munmap(map, AT_ONCE * page);
        }
}

enum { READERS = 12, PIECE = 1 << 20 };

// Keeps the disk busy: what is asked of it meanwhile comes after all of this.
static void *read_on(void *name) {
    int fd = open(name, O_RDONLY | O_DIRECT);
    void *bytes;
    if (fd < 0 || posix_memalign(&bytes, 4096, PIECE))
        exit(3);
    for (off_t at = 0;; at = (at + PIECE) % (16 * PIECE))
        if (pread(fd, bytes, PIECE, at) < 0)
            exit(4);
}

static void keep_the_disk_busy(char *name) {
    pthread_t thread;
    for (int reader = 0; reader < READERS; reader++)
        if (pthread_create(&thread, 0, read_on, name))
            exit(3);
}

// Its first page, with a line more that says nothing, is written past the memory and read again.
static void hold_users(void) {
    char line[4096];
    int fd = open("/etc/passwd", O_RDWR), past = past_memory("/etc/passwd");
    char *text = fresh;
    ssize_t len = fd < 0 ? -1 : pread(fd, text, page, 0);
    if (len < 0 || len + 2 > (ssize_t)page)
        exit(4);
    memset(text + len, '#', page - len - 1);
    text[page - 1] = '\n';
    for (;;) {
        drop(past, 0, 1);
        if (pread(fd, line, sizeof line, 0) < 0)
            exit(4);
    }
}

// The answer goes to memory that has to be read from the disk first.
static void hold_size(int fd) {
    int past = past_memory(slow_name);
    for (int at = 0;; at = (at + 1) % PAGES) {
        drop(past, at, 1);
        char *map = mmap(0, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, at * page);
        if (map == MAP_FAILED || ioctl(0, TIOCGWINSZ, map))
            exit(4);
        munmap(map, page);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    page = sysconf(_SC_PAGESIZE);
    if (count < 3)
        return 2;
    if (!strcmp(words[1], "inode")) {
        size_t size = 64 << 20;
        void *bytes;
        int fd = open(words[2], O_WRONLY | O_CREAT | O_DIRECT, 0666);
        if (fd < 0 || fchmod(fd, 0666) || posix_memalign(&bytes, 4096, size))
            return 3;
        puts("begun");
        fflush(stdout);
        return write(fd, bytes, size) < 0;
    }
    int fd = slow_file();
    puts("begun");
    fflush(stdout);
    if (!strcmp(words[1], "users") || !strcmp(words[1], "size")) {
        keep_the_disk_busy(words[2]);
        if (words[1][0] == 'u')
            hold_users();
        hold_size(fd);
    }
    if (!strcmp(words[1], "pipe")) {
        write_slowly(fd, 1, 1000);
        return 0;
    }
    // Who takes from such a pipe without waiting for bytes waits for its lock all the same.
    int ends[2], nowhere = open("/dev/null", O_WRONLY);
    double longest = 0;
    if (pipe2(ends, O_NONBLOCK))
        return 3;
    pid_t writer = fork();
    if (!writer) {
        fcntl(ends[1], F_SETFL, 0);
        write_slowly(fd, ends[1], 1);
        _exit(0);
    }
    for (double begun = now(); longest <= LONG && now() - begun < 3;) {
        double before = now();
        ssize_t got = splice(ends[0], 0, nowhere, 0, 1 << 16, SPLICE_F_NONBLOCK);
        if (got < 0 && errno != EAGAIN)
            return 4;
        if (now() - before > longest)
            longest = now() - before;
    }
    kill(writer, 9);
    wait(0);
    printf("waited %s\n", longest > LONG ? "done" : "EAGAIN");
    return 0;
}
