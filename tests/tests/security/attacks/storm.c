// Makes system calls of every number with arguments drawn by chance: numbers, flags, descriptors of every kind, processes,
// pointers to memory, to the end of memory and to nowhere, and paths that lead to odd places. From a seed, so that a round can
// be run again.
//
//   storm SEED FROM CALLS    numbers FROM to 600, each in a child that makes so many calls
//
// Prints `at N` before each number, so that who was ended by its own child can be started again behind it, and in the end
// how many numbers were tried, answered, and killed for: `x32` and `ia32` are calls by other tables, which no child survives.
//
// Left out is only what would end the storm and nothing else: signals, tracing and limits aimed at the process that counts
// (by its own number, or at everybody). Children have a session, a limit on memory and on the size of files, and little time.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAST_CALL 600
#define PAGES 16
#define CHILD_MS 60

static pid_t counter;
static char *memory; // PAGES pages, and behind them nothing

// What all children have said, by number: kept where they reach it, and read at the end.
static struct tally {
    uint32_t made, answered;
} *tallies;

static uint64_t state;

static uint64_t draw(void) { // xorshift64*
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull;
}

static uint64_t below(uint64_t bound) { return (draw() >> 16) % bound; }

static const char *const PATHS[] = {
    "/", ".", "..", "../../../../..", "/tmp", "/tmp/storm", "/tmp/storm/a", "/tmp/storm/b", "/etc/passwd", "/usr/bin",
    "/dev/null", "/dev/tty", "/dev/ptmx", "/dev/shm/storm", "/dev/pts/0", "/dev/random", "/proc", "/proc/1", "/proc/1/root",
    "/proc/1/ns/mnt", "/proc/1/fd/3", "/proc/1/mem", "/proc/self/root", "/proc/self/cwd", "/proc/self/exe", "/proc/self/fd/3",
    "/proc/self/fd/7", "/proc/self/ns/user", "/proc/self/mem", "/proc/self/uid_map", "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys", "/sys/fs/cgroup", "/home/user", "", "\xff\xfe",
    "tmpfs", "proc", "overlay", "user.overlay.opaque", "trusted.overlay.opaque", "security.capability",
    "system.posix_acl_access",
};

static long argument(void) {
    switch (below(20)) {
    case 0: case 1: case 2: return 0;
    case 3: case 4: return below(8);
    case 5: return below(4096);
    case 6: return -(long)below(4);
    case 7: case 8: case 9: return below(40); // a descriptor, most likely
    case 10: return -100;                     // the working directory
    case 11: case 12: case 13: return (long)(memory + below(PAGES) * 4096);
    case 14: return (long)(memory + PAGES * 4096 - below(64)); // it ends too early
    case 15: case 16: return (long)PATHS[below(sizeof PATHS / sizeof *PATHS)];
    case 17: return 1l << below(32) | (below(2) ? 1l << below(32) : 0);
    case 18: return below(2) ? getpid() : 1;
    default: return below(2) ? (long)draw() : (long)(draw() & 0xffffffff);
    }
}

// Memory with something in it: paths, small numbers, pointers into itself, chance.
static void fill_memory(void) {
    for (int page = 0; page < PAGES; page++) {
        long *words = (long *)(memory + page * 4096);
        int kind = below(5);
        for (int at = 0; at < 512; at++)
            words[at] = kind == 0 ? 0 : kind == 1 ? (long)draw() : kind == 2 ? argument() : kind == 3 ? (long)below(4) : (long)(memory + below(PAGES) * 4096);
        if (kind == 0)
            strcpy(memory + page * 4096, PATHS[below(sizeof PATHS / sizeof *PATHS)]);
    }
}

static void open_everything(void) {
    int pair[2], null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    mkdir("/tmp/storm", 0777);
    if (chdir("/tmp/storm"))
        return;
    open("a", O_RDWR | O_CREAT, 0666);
    open(".", O_RDONLY | O_DIRECTORY);
    open("/", O_PATH | O_DIRECTORY);
    open("/proc/self/ns/user", O_RDONLY);
    open("/proc/self/ns/mnt", O_RDONLY);
    open("/proc/self/mem", O_RDWR);
    open("/dev/ptmx", O_RDWR | O_NOCTTY);
    open("/dev/urandom", O_RDWR);
    open("/proc/1", O_RDONLY | O_DIRECTORY);
    if (!pipe(pair) && !socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
    socket(AF_INET, SOCK_STREAM, 0);
    socket(AF_INET6, SOCK_DGRAM, 0);
    socket(AF_NETLINK, SOCK_RAW, 0);
    epoll_create1(0);
    eventfd(1, 0);
    inotify_init1(IN_NONBLOCK);
    memfd_create("storm", MFD_ALLOW_SEALING);
    syscall(SYS_pidfd_open, 1, 0);
    syscall(SYS_pidfd_open, getpid(), 0);
}

static void tick(int signal) { (void)signal; }

static void hold_oneself_back(void) {
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit memory_limit = {1 << 30, 1 << 30}, file = {8 << 20, 8 << 20}, processes = {64, 64};
    setrlimit(RLIMIT_AS, &memory_limit);
    setrlimit(RLIMIT_FSIZE, &file);
    setrlimit(RLIMIT_NPROC, &processes);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    // Whoever waits for something goes on soon.
    struct sigaction how = {.sa_handler = tick};
    sigaction(SIGALRM, &how, NULL);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, NULL);
}

// Everybody at once, and whoever counts.
static int is_aimed_at_the_counter(long number, const long *arguments) {
    if (number == SYS_kill && (int)arguments[0] == -1)
        return 1;
    for (int at = 0; at < 6; at++)
        if ((int)arguments[at] == counter || (int)arguments[at] == -counter)
            return 1;
    return 0;
}

static void make_calls(long number, int calls) {
    pid_t self = getpid();
    for (int made = 0; made < calls; made++) {
        fill_memory();
        long arguments[6];
        do
            for (int at = 0; at < 6; at++)
                arguments[at] = argument();
        while (is_aimed_at_the_counter(number, arguments));
        tallies[number].made++;
        long done = syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
        if (syscall(SYS_getpid) != self)
            _exit(0); // the other one, after a fork
        if (done >= 0)
            tallies[number].answered++;
    }
    _exit(0);
}

// How it ended. It has little time; what it leaves behind has none.
static int in_a_child(void (*act)(long, int), long number, int calls) {
    uint64_t seed = draw();
    pid_t child = fork();
    if (child < 0)
        return -1;
    if (child == 0) {
        state = seed | 1;
        hold_oneself_back();
        open_everything();
        act(number, calls);
        _exit(0);
    }
    struct pollfd ended = {(int)syscall(SYS_pidfd_open, child, 0), POLLIN, 0};
    poll(&ended, 1, CHILD_MS);
    close(ended.fd);
    int status = 0;
    kill(-1, SIGKILL); // all but init and this
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    return status;
}

#ifdef __x86_64__
static void by_x32(long number, int calls) {
    (void)calls;
    syscall(number | 0x40000000, argument(), argument(), argument(), argument(), argument(), argument());
}

static void by_ia32(long number, int calls) {
    (void)calls;
    long done;
    __asm__ volatile("int $0x80" : "=a"(done) : "a"(number), "b"(argument()), "c"(argument()), "d"(argument()) : "memory");
}
#endif

// Only where process 1 is Cabana's: what is harmless where it is refused is not on a host.
static void only_in_a_sandbox(void) {
    char name[32] = "";
    int fd = open("/proc/1/comm", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, name, sizeof name - 1) > 0 && !strcmp(name, "cabana-init\n") && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2) {
        close(fd);
        return;
    }
    fputs("this is no sandbox\n", stderr);
    exit(3);
}

int main(int count, char **words) {
    only_in_a_sandbox();
    if (count != 4)
        return 2;
    state = strtoull(words[1], NULL, 0) * 0x9e3779b97f4a7c15ull | 1;
    long from = atol(words[2]);
    int calls = atoi(words[3]);
    counter = getpid();
    memory = mmap(NULL, (PAGES + 1) * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(memory + PAGES * 4096, 4096);
    tallies = mmap(NULL, (LAST_CALL + 1) * sizeof *tallies, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (long number = 0; number <= LAST_CALL; number++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        state |= 1;
        if (number < from)
            continue;
        printf("at %ld\n", number);
        fflush(stdout);
        // Each writes out the whole machine's disks.
        in_a_child(make_calls, number, number == SYS_sync || number == SYS_syncfs ? 1 : calls);
    }
    int tried = 0, answered = 0;
    for (long number = from; number <= LAST_CALL; number++) {
        tried += tallies[number].made > 0;
        answered += tallies[number].answered > 0;
    }
    printf("tried %d\nanswered %d\n", tried, answered);
#ifdef __x86_64__
    int other = 0, killed = 0;
    for (; other < 24; other += 2) {
        killed += WTERMSIG(in_a_child(by_x32, below(512), 1)) == SIGSYS;
        killed += WTERMSIG(in_a_child(by_ia32, below(450), 1)) == SIGSYS;
    }
    printf("other-tables %d\nkilled %d\n", other, killed);
#endif
    puts("done");
}
