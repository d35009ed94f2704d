// Reaches the kernel by another set of numbers, which a filter that looks at the numbers alone takes for something else.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    long done = -1;
    if (!strcmp(what, "native"))
        done = syscall(SYS_getpid);
#ifdef __x86_64__
    if (!strcmp(what, "int80")) // 20 is getpid there, and writev here
        __asm__ volatile("int $0x80" : "=a"(done) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
    if (!strcmp(what, "int80-mount")) // 21 is mount there, and access here
        __asm__ volatile("int $0x80" : "=a"(done) : "a"(21L), "b"(1L), "c"(1L), "d"(1L), "S"(0L), "D"(0L) : "memory");
    if (!strcmp(what, "x32"))
        done = syscall(0x40000000L | SYS_getpid);
    if (!strcmp(what, "x32-unshare"))
        done = syscall(0x40000000L | SYS_unshare, 0x10000000);
#endif
    printf("%s %ld\n", what, done);
}
