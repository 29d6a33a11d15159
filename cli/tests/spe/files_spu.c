#include <dirent.h>
#include <ea.h>
#include <errno.h>
#include <fcntl.h>
#include <spu_cache.h>
#include <spu_mfcio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

#define CHECK(condition) do { \
	if (!(condition)) { \
		printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
		return 1; \
	} \
} while (0)

/* A function of the program's own, beside which the library has others that it uses. */
int ftok(int way) { return way + 1; }

static int files(void)
{
	const char *volatile nowhere = 0;
	char text[16] = "", pattern[] = "fileXXXXXX", other[] = "nameXXXXXX", here[256];
	struct iovec parts[2] = {{ "ab", 2 }, { "cde", 3 }};
	struct utimbuf times = { 1000, 2000 };
	struct timeval exact[2] = {{ 3000, 250000 }, { 4000, 500000 }};
	struct stat found;
	int file = mkstemp(pattern), second;
	CHECK(file > 2 && access(pattern, R_OK | W_OK) == 0);
	CHECK(write(file, "0123456789", 10) == 10);
	CHECK(lseek(file, -4, SEEK_END) == 6 && read(file, text, 16) == 4 && !memcmp(text, "6789", 4));
	CHECK(pwrite(file, "xyz", 3, 2) == 3 && pread(file, text, 5, 1) == 5 && !memcmp(text, "1xyz5", 5));
	CHECK(lseek(file, 0, SEEK_CUR) == 10);
	CHECK(fstat(file, &found) == 0 && found.st_size == 10 && S_ISREG(found.st_mode) && found.st_nlink == 1);
	CHECK(ftruncate(file, 3) == 0 && truncate(pattern, 4) == 0 && lseek(file, 0, SEEK_END) == 4);
	CHECK(writev(file, parts, 2) == 5 && lseek(file, 4, SEEK_SET) == 4);
	memset(text, 0, sizeof text);
	parts[0].iov_base = text + 8;
	parts[1].iov_base = text;
	CHECK(readv(file, parts, 2) == 5 && !strcmp(text + 8, "ab") && !strcmp(text, "cde"));
	second = dup(file);
	CHECK(second > 2 && second != file && dup2(file, second) == second && close(second) == 0 && fsync(file) == 0);
	CHECK(fchmod(file, 0640) == 0 && stat(pattern, &found) == 0 && (found.st_mode & 0777) == 0640);
	CHECK(chmod(pattern, 0600) == 0 && utime(pattern, &times) == 0);
	CHECK(stat(pattern, &found) == 0 && found.st_atime == 1000 && found.st_mtime == 2000);
	CHECK(utimes(pattern, exact) == 0 && stat(pattern, &found) == 0 && found.st_mtime == 4000);
	CHECK(close(file) == 0 && close(file) == -1 && errno == EBADF);
	CHECK(mktemp(other) == other && access(other, F_OK) == -1 && errno == ENOENT);
	CHECK(link(pattern, other) == 0 && stat(other, &found) == 0 && found.st_nlink == 2);
	CHECK(unlink(other) == 0 && symlink(pattern, other) == 0);
	CHECK(lstat(other, &found) == 0 && S_ISLNK(found.st_mode));
	CHECK(readlink(other, here, sizeof here) == 10 && !memcmp(here, pattern, 10));
	CHECK(unlink(other) == 0 && rename(pattern, other) == 0 && creat(pattern, 0600) > 2);
	CHECK(open("nothing", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(stat(nowhere, &found) == -1 && errno == EFAULT);
	return unlink(other) || unlink(pattern);
}

static int folders(void)
{
	char before[256], within[256];
	struct dirent *entry;
	int seen = 0, mask = umask(022);
	long second = 0;
	DIR *folder;
	CHECK(umask(mask) == 022);
	CHECK(getcwd(before, sizeof before) == before && mkdir("inner", 0755) == 0);
	CHECK(mkdir("inner", 0755) == -1 && errno == EEXIST);
	CHECK(chdir("inner") == 0 && getcwd(within, sizeof within) && !strcmp(within + strlen(before), "/inner"));
	CHECK(getcwd(within, 2) == 0 && errno == ERANGE);
	CHECK(mkdir("one", 0755) == 0 && symlink("one", "two") == 0 && chdir("..") == 0);
	CHECK((folder = opendir("inner")) != 0);
	while ((entry = readdir(folder))) {
		seen |= !strcmp(entry->d_name, "one") ? 1 : !strcmp(entry->d_name, "two") ? 2
			: !strcmp(entry->d_name, ".") ? 4 : !strcmp(entry->d_name, "..") ? 8 : 16;
		if (!second)
			second = telldir(folder);
	}
	CHECK(seen == 15);
	rewinddir(folder);
	for (seen = 0; readdir(folder); seen++)
		;
	seekdir(folder, second);
	for (; readdir(folder); seen--)
		;
	CHECK(seen == 1 && closedir(folder) == 0);
	CHECK(opendir("inner/none") == 0 && errno == ENOENT);
	CHECK(rmdir("inner") == -1 && errno == ENOTEMPTY);
	return unlink("inner/two") || rmdir("inner/one") || rmdir("inner");
}

static int clocks(void)
{
	struct timespec short_time = { 0, 1000000 }, rest = { 7, 7 };
	struct timeval now, later;
	time_t first = time(0), second;
	CHECK(gettimeofday(&now, 0) == 0 && now.tv_sec - first <= 1 && now.tv_usec < 1000000);
	CHECK(nanosleep(&short_time, &rest) == 0 && gettimeofday(&later, 0) == 0);
	CHECK((later.tv_sec - now.tv_sec) * 1000000 + later.tv_usec - now.tv_usec >= 1000);
	CHECK(time(&second) == second && second - first < 100);
	CHECK(wait(0) == -1 && errno == ECHILD);
	return 0;
}

static int memory(unsigned long long argp)
{
	static char own[128] __attribute__((aligned(128)));
	__ea char *all[40], *line, *grown;
	__ea void *aligned = 0;
	unsigned long long map;
	int each, file;
	for (each = 0; each < 40; each++) {
		all[each] = malloc_ea(each * each * 100 + 1);
		CHECK(all[each] != 0);
		memset_ea(all[each], each, each * each * 100 + 1);
	}
	for (each = 0; each < 40; each++)
		CHECK(all[each][each * each * 100] == each);
	line = calloc_ea(4, 100);
	for (each = 0; each < 400; each++)
		CHECK(line[each] == 0);
	strcpy_ea(line, "far away");
	grown = realloc_ea(line, 100000);
	CHECK(grown && !strcmp(grown, "far away"));
	CHECK(posix_memalign_ea(&aligned, 128, 256) == 0 && ((unsigned int)aligned & 127) == 0);
	CHECK(posix_memalign_ea(&aligned, 3, 256) == EINVAL);
	memcpy_ea(aligned, grown, 9);
	mfc_get(own, (unsigned int)aligned, 128, 3, 0, 0);
	mfc_write_tag_mask(1 << 3);
	mfc_read_tag_status_all();
	CHECK(!strcmp(own, "far away"));
	cache_touch(aligned);
	CHECK(!strcmp(cache_fetch(aligned), "far away"));
	cache_flush();
	free_ea(aligned);
	free_ea(grown);
	for (each = 0; each < 40; each++)
		free_ea(all[each]);
	CHECK(malloc_ea(0xffff0000u) == 0 && errno == ENOMEM);
	CHECK(calloc_ea(1 << 20, 1 << 20) == 0 && errno == ENOMEM);
	/* The host's own pointer goes back into the host's hands. */
	line = malloc_ea(64);
	strcpy_ea(line, "for the host");
	*(__ea unsigned int *)(unsigned int)argp = (unsigned int)line;

	map = mmap_eaddr(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(map != MAP_FAILED_EADDR && map >> 32 == 0);
	((__ea char *)(unsigned int)map)[(1 << 20) - 1] = 5;
	CHECK(munmap_eaddr(map, 1 << 20) == 0);
	CHECK(mmap_eaddr(0, 4096, PROT_READ, MAP_SHARED, -1, 0) == MAP_FAILED_EADDR && errno == EBADF);
	file = open("mapped", O_CREAT | O_RDWR, 0600);
	CHECK(file > 2 && ftruncate(file, 8192) == 0);
	line = mmap_ea(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(line != (char *)-1);
	strcpy_ea(line + 5000, "by the map");
	CHECK(msync_ea(line, 8192, MS_SYNC) == 0 && pread(file, own, 11, 5000) == 11);
	CHECK(!strcmp(own, "by the map") && munmap_ea(line, 8192) == 0);
	line = malloc_ea(8192);
	CHECK(pread_ea(file, line, 8192, 0) == 8192 && !strcmp(line + 5000, "by the map"));
	CHECK(read_ea(file, line, 9000) == 8192 && read_ea(file, line, 1) == 0);
	CHECK(write_ea(file, line, 5000) == 5000 && pwrite_ea(file, line, 100, 8000) == 100);
	CHECK(lseek(file, 0, SEEK_END) == 13192);
	free_ea(line);
	return close(file) || unlink("mapped");
}

int main(unsigned long long id, unsigned long long argp)
{
	return files() || folders() || clocks() || memory(argp) || ftok(3) != 4;
}
