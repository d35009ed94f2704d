// Asks for memory in huge pages, which the host sets aside for others and which no group counts.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *what, int done) { printf("%s %s\n", what, done ? "done" : strerrorname_np(errno)); }

int main(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
    say("mapping them", mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED);
    say("mapping them of another size", mmap(NULL, 1 << 30, PROT_READ, flags | 30 << 26, -1, 0) != MAP_FAILED);
    int file = syscall(SYS_memfd_create, "huge", 4);
    say("a file of them", file >= 0 && !ftruncate(file, 2 << 20) &&
                               mmap(NULL, 2 << 20, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED);
}
