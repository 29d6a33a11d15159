/* Memory of the host: allocated and mapped by callbacks; read and written in place. */
#include <ea.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "call.h"

enum {
	CALLOC = 1, FREE = 2, MALLOC = 3, REALLOC = 4, MEMALIGN = 5,
	MMAP = 11, MREMAP = 12, MSYNC = 13, MUNMAP = 14,
	PIECE_BYTES = 2048,
};

static u64 wide(u32 stop, int operation, int count, ...)
{
	struct slot slots[SLOTS_MAX];
	va_list list;
	int each;
	memset(slots, 0, sizeof slots);
	va_start(list, count);
	for (each = 0; each < count; each++)
		slots[each].wide[0] = va_arg(list, u64);
	va_end(list);
	__sidecore_callback(stop, operation, slots);
	return slots[0].wide[0];
}

__ea void *malloc_ea(size_ea_t bytes) { return (void *)(u32)wide(STOP_MEMORY, MALLOC, 1, (u64)bytes); }
__ea void *calloc_ea(size_ea_t count, size_ea_t size)
{
	return (void *)(u32)wide(STOP_MEMORY, CALLOC, 2, (u64)count, (u64)size);
}
__ea void *realloc_ea(__ea void *memory, size_ea_t bytes)
{
	return (void *)(u32)wide(STOP_MEMORY, REALLOC, 2, (u64)(u32)memory, (u64)bytes);
}
void free_ea(__ea void *memory) { wide(STOP_MEMORY, FREE, 1, (u64)(u32)memory); }

int posix_memalign_ea(__ea void **memory, size_ea_t alignment, size_ea_t bytes)
{
	u32 found[4] __attribute__((aligned(16))) = { 0 };
	int error = wide(STOP_MEMORY, MEMALIGN, 3, (u64)(u32)found, (u64)alignment, (u64)bytes);
	if (!error)
		*memory = (void *)found[0];
	return error;
}

unsigned long long mmap_eaddr(unsigned long long place, size_t bytes, int access, int flags, int file, off_t offset)
{
	return wide(STOP_POSIX, MMAP, 6, (u64)place, (u64)bytes, (u64)access, (u64)flags, (u64)file, (u64)offset);
}
unsigned long long mremap_eaddr(unsigned long long place, size_t before, size_t bytes, int flags)
{
	return wide(STOP_POSIX, MREMAP, 4, (u64)place, (u64)before, (u64)bytes, (u64)flags);
}
unsigned long long msync_eaddr(unsigned long long place, size_t bytes, int flags)
{
	return wide(STOP_POSIX, MSYNC, 3, (u64)place, (u64)bytes, (u64)flags);
}
unsigned long long munmap_eaddr(unsigned long long place, size_t bytes)
{
	return wide(STOP_POSIX, MUNMAP, 2, (u64)place, (u64)bytes);
}

/* A map whose address no pointer can hold is none. */
static void *reached(u64 place, size_t bytes)
{
	if (place != MAP_FAILED_EADDR && place >> 32) {
		munmap_eaddr(place, bytes);
		errno = ENOMEM;
		place = MAP_FAILED_EADDR;
	}
	return (void *)(u32)place;
}

__ea void *mmap_ea(__ea void *place, size_ea_t bytes, int access, int flags, int file, off_t offset)
{
	return reached(mmap_eaddr((u32)place, bytes, access, flags, file, offset), bytes);
}
__ea void *mremap_ea(__ea void *place, size_ea_t before, size_ea_t bytes, unsigned long flags)
{
	return reached(mremap_eaddr((u32)place, before, bytes, flags), bytes);
}
int msync_ea(__ea void *place, size_ea_t bytes, int flags) { return msync_eaddr((u32)place, bytes, flags); }
int munmap_ea(__ea void *place, size_ea_t bytes) { return munmap_eaddr((u32)place, bytes); }

/* Files into the host's memory and out of it, by pieces in the store. */
static ssize_ea_t from_file(int file, char *memory, size_ea_t bytes, off_t offset, int moves)
{
	char piece[PIECE_BYTES];
	size_ea_t done = 0;
	while (done < bytes) {
		size_t wanted = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
		ssize_t got = moves ? read(file, piece, wanted) : pread(file, piece, wanted, offset + done);
		if (got < 0 && !done)
			return -1;
		if (got <= 0)
			break;
		memcpy(memory + done, piece, got);
		done += got;
		if ((size_t)got < wanted)
			break;
	}
	return done;
}

static ssize_ea_t to_file(int file, const char *memory, size_ea_t bytes, off_t offset, int moves)
{
	char piece[PIECE_BYTES];
	size_ea_t done = 0;
	while (done < bytes) {
		size_t wanted = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
		ssize_t put;
		memcpy(piece, memory + done, wanted);
		put = moves ? write(file, piece, wanted) : pwrite(file, piece, wanted, offset + done);
		if (put < 0 && !done)
			return -1;
		if (put <= 0)
			break;
		done += put;
		if ((size_t)put < wanted)
			break;
	}
	return done;
}

ssize_ea_t read_ea(int file, __ea void *memory, size_ea_t bytes) { return from_file(file, memory, bytes, 0, 1); }
ssize_ea_t pread_ea(int file, __ea void *memory, size_ea_t bytes, off_t offset)
{
	return from_file(file, memory, bytes, offset, 0);
}
ssize_ea_t write_ea(int file, __ea const void *memory, size_ea_t bytes)
{
	return to_file(file, memory, bytes, 0, 1);
}
ssize_ea_t pwrite_ea(int file, __ea const void *memory, size_ea_t bytes, off_t offset)
{
	return to_file(file, memory, bytes, offset, 0);
}
