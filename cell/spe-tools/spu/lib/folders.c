/* Folders of the host, read entry by entry. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "call.h"

enum {
	OPENDIR = 55, CLOSEDIR = 56, READDIR = 57, REWINDDIR = 58, SEEKDIR = 59, TELLDIR = 60, NAME_BYTES = 256,
};

struct __dirstream {
	/* The host's number of the folder. */
	u64 folder;
	struct dirent entry;
};

/* An entry as the host gives it. */
struct found {
	u32 number;
	char name[NAME_BYTES];
} __attribute__((aligned(16)));

static u64 call(int operation, const DIR *folder, u32 argument)
{
	struct slot slots[SLOTS_MAX];
	memset(slots, 0, sizeof slots);
	slots[0].wide[0] = folder->folder;
	slots[1].word[0] = argument;
	__sidecore_callback(STOP_POSIX, operation, slots);
	return slots[0].wide[0];
}

DIR *opendir(const char *path)
{
	struct slot slots[SLOTS_MAX];
	DIR *own = malloc(sizeof *own);
	if (!own) {
		errno = ENOMEM;
		return 0;
	}
	memset(slots, 0, sizeof slots);
	slots[0].word[0] = (u32)path;
	__sidecore_callback(STOP_POSIX, OPENDIR, slots);
	own->folder = slots[0].wide[0];
	if (own->folder)
		return own;
	free(own);
	return 0;
}

int closedir(DIR *own)
{
	int result = call(CLOSEDIR, own, 0);
	free(own);
	return result;
}

struct dirent *readdir(DIR *own)
{
	struct found found;
	if (!call(READDIR, own, (u32)&found))
		return 0;
	own->entry.d_ino = found.number;
	own->entry.d_off = 0;
	own->entry.d_reclen = sizeof own->entry;
	own->entry.d_type = DT_UNKNOWN;
	memcpy(own->entry.d_name, found.name, NAME_BYTES);
	return &own->entry;
}

void rewinddir(DIR *own) { call(REWINDDIR, own, 0); }
void seekdir(DIR *own, long place) { call(SEEKDIR, own, place); }
long telldir(DIR *own) { return call(TELLDIR, own, 0); }

struct dirent64 *readdir64(DIR *) __attribute__((alias("readdir")));
