// Hides what it writes behind programs that run, have no name any more, and map nothing of their file: each replaces its own image
// by a copy of it in memory, at the same place. Arguments: how many, and how many MiB each has. Says `hidden`, and stays.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const program = "/home/user/unmapped";

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void write_program(int mib) {
    static char zeros[1 << 20];
    int from = open("/proc/self/exe", O_RDONLY), to = open(program, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    ssize_t count;
    while ((count = read(from, zeros, sizeof zeros)) > 0)
        if (write(to, zeros, count) != count) fail("copying");
    memset(zeros, 1, sizeof zeros);
    for (int done = 0; done < mib; done++)
        if (write(to, zeros, sizeof zeros) != sizeof zeros) fail("writing");
    close(from);
    close(to);
}

static void replace(char *begin, size_t length, int protection) {
    char *copy = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) fail("mmap");
    memcpy(copy, begin, length);
    if (mprotect(copy, length, protection)) fail("mprotect");
    if (mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, begin) != begin) fail("mremap");
}

static void hide(void) {
    unlink(program);
    FILE *maps = fopen("/proc/self/maps", "r");
    struct {
        unsigned long begin, end;
        int protection;
    } all[64];
    int count = 0;
    char line[512], r, w, x;
    while (count < 64 && fgets(line, sizeof line, maps)) {
        if (!strstr(line, "(deleted)")) continue;
        if (sscanf(line, "%lx-%lx %c%c%c", &all[count].begin, &all[count].end, &r, &w, &x) != 5) continue;
        all[count].protection = (r == 'r' ? PROT_READ : 0) | (w == 'w' ? PROT_WRITE : 0) | (x == 'x' ? PROT_EXEC : 0);
        count++;
    }
    fclose(maps);
    for (int at = 0; at < count; at++)
        replace((char *)all[at].begin, all[at].end - all[at].begin, all[at].protection);
}

int main(int count, char **words) {
    if (count == 2) {
        hide();
        close(atoi(words[1])); // the pipe
        for (;;) pause();
    }
    puts("begins");
    fflush(stdout);
    for (int left = atoi(words[1]); left > 0; left--) {
        int ends[2];
        if (pipe(ends)) fail("pipe");
        write_program(atoi(words[2]));
        if (fork() == 0) {
            char number[16];
            close(ends[0]);
            snprintf(number, sizeof number, "%d", ends[1]);
            execl(program, program, number, NULL);
            fail("exec");
        }
        close(ends[1]);
        char none;
        if (read(ends[0], &none, 1) != 0) fail("read"); // until it is hidden
        close(ends[0]);
    }
    puts("hidden");
    fflush(stdout);
    for (;;) pause();
}
