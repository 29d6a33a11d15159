/* Files of the host by their names and numbers, beyond those of posix.c. Sizes, offsets and times have 32 bits,
 * as on the SPU.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>
#include "call.h"

#define call __sidecore_posix

enum {
	CREAT = 3, FSTAT = 4, FTOK = 5, KILL = 8, LSTAT = 10, SHM_OPEN = 21, SHM_UNLINK = 22, STAT = 23, WAIT = 25,
	WAITPID = 26, CHDIR = 33, FCHDIR = 34, MKDIR = 35, MKNOD = 36, RMDIR = 37, CHMOD = 38, FCHMOD = 39,
	CHOWN = 40, FCHOWN = 41, LCHOWN = 42, GETCWD = 43, LINK = 44, SYMLINK = 45, READLINK = 46, SYNC = 47,
	FSYNC = 48, FDATASYNC = 49, DUP2 = 50, LOCKF = 51, TRUNCATE = 52, MKSTEMP = 53, MKTEMP = 54,
	SCHED_YIELD = 61, UMASK = 62, UTIME = 63, UTIMES = 64, PREAD = 65, PWRITE = 66, READV = 67, WRITEV = 68,
};

/* A file's status as the host gives it. */
struct status {
	u32 dev, ino, mode, nlink, uid, gid, rdev, size, blksize, blocks, atime, mtime, ctime;
} __attribute__((aligned(16)));

static int status(int operation, u32 file, struct stat *to)
{
	struct status found;
	int result = call(operation, file, (u32)&found, 0);
	if (result)
		return result;
	memset(to, 0, sizeof *to);
	to->st_dev = found.dev;
	to->st_ino = found.ino;
	to->st_mode = found.mode;
	to->st_nlink = found.nlink;
	to->st_uid = found.uid;
	to->st_gid = found.gid;
	to->st_rdev = found.rdev;
	to->st_size = found.size;
	to->st_blksize = found.blksize;
	to->st_blocks = found.blocks;
	to->st_atime = found.atime;
	to->st_mtime = found.mtime;
	to->st_ctime = found.ctime;
	return 0;
}

int stat(const char *path, struct stat *to) { return status(STAT, (u32)path, to); }
int lstat(const char *path, struct stat *to) { return status(LSTAT, (u32)path, to); }
int fstat(int file, struct stat *to) { return status(FSTAT, file, to); }

int creat(const char *path, mode_t mode) { return call(CREAT, (u32)path, mode, 0); }
int shm_open(const char *name, int flags, mode_t mode) { return call(SHM_OPEN, (u32)name, flags, mode); }
int shm_unlink(const char *name) { return call(SHM_UNLINK, (u32)name, 0, 0); }
int chdir(const char *path) { return call(CHDIR, (u32)path, 0, 0); }
int fchdir(int file) { return call(FCHDIR, file, 0, 0); }
int mkdir(const char *path, mode_t mode) { return call(MKDIR, (u32)path, mode, 0); }
int mknod(const char *path, mode_t mode, dev_t device) { return call(MKNOD, (u32)path, mode, device); }
int rmdir(const char *path) { return call(RMDIR, (u32)path, 0, 0); }
int chmod(const char *path, mode_t mode) { return call(CHMOD, (u32)path, mode, 0); }
int fchmod(int file, mode_t mode) { return call(FCHMOD, file, mode, 0); }
int chown(const char *path, uid_t owner, gid_t group) { return call(CHOWN, (u32)path, owner, group); }
int fchown(int file, uid_t owner, gid_t group) { return call(FCHOWN, file, owner, group); }
int lchown(const char *path, uid_t owner, gid_t group) { return call(LCHOWN, (u32)path, owner, group); }
int link(const char *from, const char *to) { return call(LINK, (u32)from, (u32)to, 0); }
int symlink(const char *from, const char *to) { return call(SYMLINK, (u32)from, (u32)to, 0); }
ssize_t readlink(const char *path, char *to, size_t bytes)
{
	return (int)call(READLINK, (u32)path, (u32)to, bytes);
}
void sync(void) { call(SYNC, 0, 0, 0); }
int fsync(int file) { return call(FSYNC, file, 0, 0); }
int fdatasync(int file) { return call(FDATASYNC, file, 0, 0); }
int dup2(int from, int to) { return call(DUP2, from, to, 0); }
int lockf(int file, int command, off_t bytes) { return call(LOCKF, file, command, bytes); }
int truncate(const char *path, off_t bytes) { return call(TRUNCATE, (u32)path, bytes, 0); }
int mkstemp(char *pattern) { return call(MKSTEMP, (u32)pattern, 0, 0); }
char *mktemp(char *pattern)
{
	call(MKTEMP, (u32)pattern, 0, 0);
	return pattern;
}
int sched_yield(void) { return call(SCHED_YIELD, 0, 0, 0); }
mode_t umask(mode_t mask) { return call(UMASK, mask, 0, 0); }
key_t ftok(const char *path, int project) { return call(FTOK, (u32)path, project, 0); }
int kill(pid_t process, int signal) { return call(KILL, process, signal, 0); }
pid_t wait(int *state) { return call(WAIT, (u32)state, 0, 0); }
pid_t waitpid(pid_t process, int *state, int options) { return call(WAITPID, process, (u32)state, options); }

char *getcwd(char *to, size_t bytes)
{
	char *own = to;
	if (!to && !bytes)
		bytes = 1024;
	if (!to && !(own = malloc(bytes)))
		return 0;
	if (call(GETCWD, (u32)own, bytes, 0))
		return own;
	if (!to)
		free(own);
	return 0;
}

int utime(const char *path, const struct utimbuf *times)
{
	u32 words[4] __attribute__((aligned(16)));
	if (!times)
		return call(UTIME, (u32)path, 0, 0);
	words[0] = times->actime;
	words[1] = times->modtime;
	return call(UTIME, (u32)path, (u32)words, 0);
}

int utimes(const char *path, const struct timeval *times)
{
	u32 words[4] __attribute__((aligned(16)));
	if (!times)
		return call(UTIMES, (u32)path, 0, 0);
	words[0] = times[0].tv_sec;
	words[1] = times[0].tv_usec;
	words[2] = times[1].tv_sec;
	words[3] = times[1].tv_usec;
	return call(UTIMES, (u32)path, (u32)words, 0);
}

static ssize_t at(int operation, int file, const void *data, size_t bytes, off_t offset)
{
	struct slot slots[SLOTS_MAX];
	memset(slots, 0, sizeof slots);
	slots[0].word[0] = file;
	slots[1].word[0] = (u32)data;
	slots[2].word[0] = bytes;
	slots[3].word[0] = offset;
	return (int)__sidecore_callback(STOP_POSIX, operation, slots);
}
ssize_t pread(int file, void *data, size_t bytes, off_t offset) { return at(PREAD, file, data, bytes, offset); }
ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset)
{
	return at(PWRITE, file, data, bytes, offset);
}

/* A buffer is two words in the store. */
_Static_assert(sizeof(struct iovec) == 8, "a pointer and a size");
ssize_t readv(int file, const struct iovec *list, int count) { return (int)call(READV, file, (u32)list, count); }
ssize_t writev(int file, const struct iovec *list, int count) { return (int)call(WRITEV, file, (u32)list, count); }

/* Under -D_FILE_OFFSET_BITS=64 headers name these; offsets have the width of a long long anyway. */
int stat64(const char *, struct stat64 *) __attribute__((alias("stat")));
int lstat64(const char *, struct stat64 *) __attribute__((alias("lstat")));
int fstat64(int, struct stat64 *) __attribute__((alias("fstat")));
int creat64(const char *, mode_t) __attribute__((alias("creat")));
int lockf64(int, int, off_t) __attribute__((alias("lockf")));
int truncate64(const char *, off_t) __attribute__((alias("truncate")));
int mkstemp64(char *) __attribute__((alias("mkstemp")));
ssize_t pread64(int, void *, size_t, off_t) __attribute__((alias("pread")));
ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));
