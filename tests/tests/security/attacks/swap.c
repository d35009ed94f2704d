// Exchanges two names as fast as it can, until a file of the third name is there. Says that it has begun, then how often.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **names) {
    unsigned long done = 0;
    if (count != 4)
        return 2;
    puts("begun");
    fflush(stdout);
    for (unsigned round = 0; round % 64 || access(names[3], F_OK); round++)
        done += !renameat2(AT_FDCWD, names[1], AT_FDCWD, names[2], RENAME_EXCHANGE);
    printf("%lu\n", done);
}
