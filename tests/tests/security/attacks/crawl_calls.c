// Asks the kernel for everything that goes by a number and not by a name: every system call, every family of sockets, every
// option of prctl, every ioctl on what a process of a sandbox can have open. Prints one line for each that is answered.
//
// `answers`: the kernel looked at it, whatever it said. `refused`: it exists, and is not for us (EPERM, EACCES). What the
// kernel does not know, or does not know here (ENOSYS, ENOTTY, EINVAL), is not printed.
//
// The arguments are the sections to print; none is all. Each question is asked in a child, or between the ticks of a timer:
// some end who asks, and some wait.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define LAST_CALL 600

static void tick(int signal) { (void)signal; }

static void keep_ticking(int every) {
    struct sigaction how = {.sa_handler = tick};
    sigaction(SIGALRM, &how, NULL);
    struct itimerval often = {{0, every}, {0, every}};
    setitimer(ITIMER_REAL, &often, NULL);
}

// ---- System calls ----

enum answer { UNKNOWN, REFUSED, ANSWERS };

static enum answer answer_of(long done, int error) {
    if (done >= 0)
        return ANSWERS;
    if (error == EPERM || error == EACCES)
        return REFUSED;
    return error == ENOSYS ? UNKNOWN : ANSWERS;
}

// In a child of its own: it may end, wait for ever, or be two afterwards.
static enum answer ask(long number, long argument) {
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3; fd++)
            dup2(null, fd);
        ualarm(20000, 0);
        pid_t self = getpid();
        long done = syscall(number, argument, argument, argument, argument, argument, argument);
        int error = errno;
        if (getpid() != self)
            _exit(0);
        _exit(answer_of(done, error));
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    // Who was ended by it has been answered; but who was killed for a bad call was not.
    if (WIFSIGNALED(status))
        return WTERMSIG(status) == SIGSYS ? UNKNOWN : ANSWERS;
    return number == SYS_exit || number == SYS_exit_group ? ANSWERS : (enum answer)WEXITSTATUS(status);
}

static void calls(void) {
    for (long number = 0; number <= LAST_CALL; number++) {
        enum answer with_ones = ask(number, -1), with_zeros = ask(number, 0);
        if (with_ones == ANSWERS || with_zeros == ANSWERS)
            printf("call answers %ld\n", number);
        else if (with_ones == REFUSED || with_zeros == REFUSED)
            printf("call refused %ld\n", number);
    }
}

// ---- Sockets ----

static void sockets(void) {
    static const char *types[] = {"0", "stream", "dgram", "raw", "rdm", "seqpacket", "dccp", "7", "8", "9", "packet"};
    for (int family = 0; family < 64; family++) {
        for (int type = 1; type <= 10; type++) {
            for (int protocol = 0; protocol < 300; protocol++) {
                int fd = socket(family, type | SOCK_CLOEXEC, protocol);
                if (fd >= 0)
                    printf("socket answers family=%d %s protocol=%d\n", family, types[type], protocol);
                else if (errno == EPERM || errno == EACCES)
                    printf("socket refused family=%d %s protocol=%d\n", family, types[type], protocol);
                close(fd);
            }
            int pair[2];
            if (!socketpair(family, type | SOCK_CLOEXEC, 0, pair)) {
                printf("socket pair family=%d %s\n", family, types[type]);
                close(pair[0]);
                close(pair[1]);
            }
        }
    }
}

// ---- prctl ----

static void options(void) {
    static const int far[] = {0x53564d41, 0x59616d61, 0x4d4c4254, 0x4c4e58};
    for (int at = 0; at < 132; at++) {
        int option = at < 128 ? at : far[at - 128];
        int best = EINVAL;
        for (long argument = 0; argument < 2 && best; argument++) {
            pid_t child = fork();
            if (child == 0) {
                ualarm(20000, 0);
                int scratch[16] = {0};
                long done = prctl(option, argument ? (long)scratch : 0, 0, 0, 0);
                _exit(done >= 0 ? 0 : errno);
            }
            int status;
            while (waitpid(child, &status, 0) < 0 && errno == EINTR)
                ;
            int error = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
            if (error != EINVAL)
                best = error;
        }
        if (best == EPERM || best == EACCES)
            printf("prctl refused %d\n", option);
        else if (best != EINVAL && best != ENOSYS)
            printf("prctl answers %d\n", option);
    }
}

// ---- ioctl ----

static char *scratch;
#define SCRATCH (1 << 16)

// Types of requests that encode a direction and a size, as files, sockets, terminals, namespaces, processes and the kernel's
// own descriptors have them.
#define OF_FILES "\x12\x15" "Xfv\x94"
#define OF_DESCRIPTORS "Xf\x94"

static const unsigned short sizes[] = {0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 44, 48, 64, 72, 80, 104, 128, 264};

static void ask_ioctl(int fd, const char *name, unsigned long request) {
    long done = ioctl(fd, request, scratch);
    int error = errno;
    if (done < 0 && (error == ENOTTY || error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == 515))
        return;
    printf("ioctl %s %s 0x%lx\n", done < 0 && (error == EPERM || error == EACCES) ? "refused" : "answers", name, request);
    memset(scratch, 0, SCRATCH);
}

// In a child: what a request changes is gone with it.
static void sweep(int fd, const char *name, const char *types) {
    if (fd < 0) {
        printf("ioctl missing %s\n", name);
        return;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        keep_ticking(20000);
        signal(SIGHUP, SIG_IGN);
        signal(SIGTTOU, SIG_IGN);
        signal(SIGIO, SIG_IGN);
        signal(SIGPIPE, SIG_IGN);
        for (unsigned long word = 0; word <= 0xffff; word++)
            ask_ioctl(fd, name, word);
        for (const char *type = types; *type; type++)
            for (unsigned number = 0; number < 256; number++)
                for (unsigned way = 1; way < 4; way++)
                    for (unsigned size = 0; size < sizeof sizes / sizeof *sizes; size++)
                        ask_ioctl(fd, name, _IOC(way, (unsigned char)*type, number, sizes[size]));
        keep_ticking(0); // a write that is interrupted loses what it had
        fflush(stdout);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        printf("ioctl CUT-SHORT %s\n", name);
    close(fd);
}

static int a_file(const char *directory) {
    char path[256];
    snprintf(path, sizeof path, "%s/crawl-XXXXXX", directory);
    int fd = mkostemp(path, O_CLOEXEC);
    unlink(path);
    return fd;
}

static void ioctls(void) {
    // Always at the same place: some requests take the argument for a number.
    scratch = mmap((void *)0x10000000, SCRATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    int ends[2], terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    sigset_t none;
    sigemptyset(&none);
    if (terminal >= 0)
        unlockpt(terminal);
    // The other side of it, by the master alone: its name need not be there.
    int slave = terminal >= 0 ? ioctl(terminal, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
    if (pipe2(ends, O_CLOEXEC))
        exit(3);
    sweep(ends[0], "pipe", OF_DESCRIPTORS);
    sweep(slave, "terminal", OF_DESCRIPTORS "T");
    sweep(terminal, "terminal-master", OF_DESCRIPTORS "T");
    sweep(a_file("/tmp"), "file", OF_FILES);
    sweep(a_file("/dev/shm"), "shared-memory-file", OF_FILES);
    sweep(memfd_create("crawl", MFD_CLOEXEC), "memory-file", OF_FILES);
    sweep(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "directory", OF_FILES);
    sweep(open("/usr/bin", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "base-directory", OF_FILES);
    sweep(open("/proc/self/status", O_RDONLY | O_CLOEXEC), "proc-file", OF_DESCRIPTORS);
    sweep(open("/proc/sys/kernel/osrelease", O_RDONLY | O_CLOEXEC), "proc-setting", OF_DESCRIPTORS);
    sweep(open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "proc-directory", OF_DESCRIPTORS);
    sweep(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "namespace-net", OF_DESCRIPTORS "\xb7");
    sweep(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC), "namespace-pid", OF_DESCRIPTORS "\xb7");
    sweep(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), "namespace-mnt", OF_DESCRIPTORS "\xb7");
    sweep(open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC), "namespace-user", OF_DESCRIPTORS "\xb7");
    sweep(open("/dev/null", O_RDWR | O_CLOEXEC), "null", OF_FILES);
    sweep(open("/dev/random", O_RDWR | O_CLOEXEC), "random", OF_FILES "R");
    sweep(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket-unix", OF_DESCRIPTORS "\x89");
    sweep(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket-tcp", OF_DESCRIPTORS "\x89");
    sweep(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket-udp", OF_DESCRIPTORS "\x89");
    sweep(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket-tcp6", OF_DESCRIPTORS "\x89");
    sweep(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0), "socket-netlink", OF_DESCRIPTORS "\x89");
    sweep(epoll_create1(EPOLL_CLOEXEC), "epoll", OF_DESCRIPTORS "\x8a");
    sweep(eventfd(0, EFD_CLOEXEC), "eventfd", OF_DESCRIPTORS);
    sweep(inotify_init1(IN_CLOEXEC), "inotify", OF_DESCRIPTORS);
    sweep(signalfd(-1, &none, SFD_CLOEXEC), "signalfd", OF_DESCRIPTORS);
    sweep(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), "timerfd", OF_DESCRIPTORS);
    sweep((int)syscall(SYS_pidfd_open, getpid(), 0), "pidfd", OF_DESCRIPTORS "v\xff");
}

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

int main(int count, char **wanted) {
    static const char *sections[] = {"calls", "sockets", "options", "ioctls"};
    static char out[1 << 20];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    for (unsigned at = 0; at < 4; at++) {
        int chosen = count == 1;
        for (int word = 1; word < count; word++)
            chosen |= !strcmp(wanted[word], sections[at]);
        fflush(stdout);
        if (chosen && at != 2)
            only_in_a_sandbox();
        if (chosen && at == 0)
            calls();
        if (chosen && at == 1)
            sockets();
        if (chosen && at == 2)
            options();
        if (chosen && at == 3)
            ioctls();
        fflush(stdout);
    }
}
