// Processes that begin another one and end, each within microseconds, and know nothing of signals but the end: who looks for them
// finds those that are gone when they are hit. Each has a session of its own where that is asked for. Says `begun`, and stays itself.
// Those that wait to be waited for are bounded, or the numbers of the machine's processes would run out.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHAINS = 24 };

static long begin(void) { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static void chain(int session) {
    for (;;) {
        if (session)
            setsid();
        long next = begin();
        if (next > 0)
            _exit(0);
        if (next < 0)
            usleep(100);
    }
}

int main(int count, char **words) {
    struct rlimit most = {400, 400};
    if (count != 3 || setrlimit(RLIMIT_NPROC, &most))
        return 2;
    for (int number = 0; number < CHAINS; number++)
        if (begin() == 0)
            chain(!strcmp(words[1], "session"));
    puts("begun");
    fflush(stdout);
    for (;;)
        pause();
}
