/* How a room is made: the steps, in the order in which the kernel allows them. */
#define _GNU_SOURCE
#include "room.h"
#include "rhythm.h"

#include <fcntl.h>
#include <linux/mount.h> /* not sys/mount.h: the two clash in glibc 2.36, and older ones lack the new calls */
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAMESPACES \
	(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)
#define LIVE_RANGE "0 1879048192 65536\n" /* one range far above the host's own users */
/* Of sys/mount.h: MNT_DETACH; MS_REC and MS_PRIVATE. */
#define DETACH 2
#define PRIVATE_BELOW (16384 | 1 << 18)

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		fail(path);
	close(fd);
}

static int tree_of(const char *path)
{
	int fd = syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	if (fd < 0)
		fail(path);
	return fd;
}

static void idmap(int tree, int user_namespace)
{
	struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = user_namespace };
	if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
		fail("mount_setattr (an idmapped mount)");
}

static void attach(int tree, const char *at)
{
	if (syscall(SYS_move_mount, tree, "", AT_FDCWD, at, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		fail("move_mount");
}

static void mount_new(const char *kind, const char *at, const char *options)
{
	if (syscall(SYS_mount, kind, at, kind, 0, options) < 0)
		fail(kind);
}

/* Before the old root is let go: a new proc may be mounted only where a whole one is visible. */
static void enter_root(const struct room *room, int lower, int layer)
{
	char options[8192];
	attach(lower, room->lower);
	attach(layer, room->dir);
	snprintf(options, sizeof options, "userxattr,lowerdir=%s,upperdir=%s/upper,workdir=%s/work", room->lower,
		 room->dir, room->dir);
	mount_new("overlay", room->dir, options);
	if (chdir(room->dir) < 0)
		fail("chdir");
	mount_new("proc", "proc", NULL);
	mount_new("tmpfs", "tmp", NULL);
	mount_new("tmpfs", "dev", NULL);
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		fail("pivot_root");
	if (syscall(SYS_umount2, ".", DETACH) < 0)
		fail("umount");
}

static void run_true(void)
{
	pid_t pid = vfork();
	if (pid == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(127);
	}
	int status = -1;
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
		fail("/bin/true in the room");
}

static void init(const struct room *room, int asked, int lower, int layer)
{
	char byte;
	if (read(asked, &byte, 1) != 1) /* the ids are mapped */
		_exit(1);
	if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
		fail("setresuid");
	enter_root(room, lower, layer);
	do {
		run_true();
		if (write(asked, &byte, 1) != 1)
			_exit(1);
	} while (read(asked, &byte, 1) == 1);
	_exit(0);
}

static void make_directories(const struct room *room)
{
	char path[4096];
	if (mkdir(room->dir, 0755) < 0)
		fail(room->dir);
	snprintf(path, sizeof path, "%s/upper", room->dir);
	if (mkdir(path, 0755) < 0)
		fail(path);
	snprintf(path, sizeof path, "%s/work", room->dir);
	if (mkdir(path, 0700) < 0)
		fail(path);
}

static void map_ids(const struct room *room, int lower, int layer)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/uid_map", room->init);
	put(path, LIVE_RANGE);
	snprintf(path, sizeof path, "/proc/%d/gid_map", room->init);
	put(path, LIVE_RANGE);
	snprintf(path, sizeof path, "/proc/%d/ns/user", room->init);
	int user_namespace = open(path, O_RDONLY | O_CLOEXEC);
	if (user_namespace < 0)
		fail(path);
	idmap(lower, user_namespace);
	idmap(layer, user_namespace);
	close(user_namespace);
}

static int leads_to(const char *mount, const char *path)
{
	size_t length = strlen(mount);
	return strncmp(mount, path, length) == 0 && (path[length] == '/' || path[length] == 0 || length == 1);
}

void room_prepare(void)
{
	char line[8192], at[4096], here[4096];
	if (unshare(CLONE_NEWNS) < 0)
		fail("unshare of the mount namespace (the floors need root)");
	if (syscall(SYS_mount, NULL, "/", NULL, PRIVATE_BELOW, NULL) < 0)
		fail("mount");
	FILE *mounts = fopen("/proc/self/mounts", "re");
	if (!mounts || !getcwd(here, sizeof here))
		fail("/proc/self/mounts");
	while (fgets(line, sizeof line, mounts))
		if (sscanf(line, "%*s %4095s", at) == 1 && strcmp(at, "/proc") && !leads_to(at, here))
			syscall(SYS_umount2, at, DETACH); /* what stays only makes each clone slower */
	fclose(mounts);
}

void room_open(struct room *room)
{
	make_directories(room);
	/* Cloned here, since only here is the right to do it; the child has them as descriptors. */
	int lower = tree_of(room->lower);
	int layer = tree_of(room->dir);
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		fail("socketpair");
	room->init = syscall(SYS_clone, NAMESPACES | SIGCHLD, NULL, NULL, NULL, NULL);
	if (room->init < 0)
		fail("clone");
	if (room->init == 0) {
		close(ends[0]);
		init(room, ends[1], lower, layer);
	}
	close(ends[1]);
	room->asks = ends[0];
	map_ids(room, lower, layer);
	if (write(room->asks, "", 1) != 1)
		fail("write to the init");
	close(lower);
	close(layer);
}

void room_await(struct room *room)
{
	char byte;
	if (read(room->asks, &byte, 1) != 1) {
		fprintf(stderr, "the room's init ended before it answered\n");
		exit(1);
	}
}

void room_run(struct room *room)
{
	if (write(room->asks, "", 1) != 1)
		fail("write to the init");
	room_await(room);
}

void room_close(struct room *room)
{
	static const char *const made[] = { "work/work", "work", "upper" };
	char path[4096];
	close(room->asks);
	kill(room->init, SIGKILL);
	if (waitpid(room->init, NULL, 0) < 0)
		fail("waitpid");
	for (unsigned i = 0; i < sizeof made / sizeof *made; i++) {
		snprintf(path, sizeof path, "%s/%s", room->dir, made[i]);
		if (rmdir(path) < 0)
			fail(path);
	}
	if (rmdir(room->dir) < 0)
		fail(room->dir);
}
