/* Copies between the store and the host's memory, for programs of isolated contexts and by libmisc. */
#include <libisolation.h>
#include <string.h>
#include "call.h"

enum { CHUNK = 16384, GET = 0x40, PUT = 0x20, READ_MASK = 12, WRITE_MASK = 22, WRITE_UPDATE = 23, READ_STATUS = 24 };
enum { UPDATE_ALL = 2 };

extern u32 __mfc_tag_reserve(void), __mfc_tag_release(u32);

static int copy(u64 ea, u32 own, u32 bytes, u32 command)
{
	u32 tag = __mfc_tag_reserve(), mask = (u32)__sidecore_call(GATE_READ, READ_MASK, 0, 0, 0);
	if (tag == ~0u)
		return -1;
	while (bytes) {
		u32 part = bytes < CHUNK ? bytes : CHUNK;
		/* A rest below a quadword goes by its largest power of two. */
		if (part >= 16)
			part &= ~15u;
		else
			while (part & (part - 1))
				part &= part - 1;
		__sidecore_call(GATE_MFC, own, ea, part | (u64)tag << 32, command);
		ea += part;
		own += part;
		bytes -= part;
	}
	__sidecore_call(GATE_WRITE, WRITE_MASK, 1u << tag, 0, 0);
	__sidecore_call(GATE_WRITE, WRITE_UPDATE, UPDATE_ALL, 0, 0);
	__sidecore_call(GATE_READ, READ_STATUS, 0, 0, 0);
	__sidecore_call(GATE_WRITE, WRITE_MASK, mask, 0, 0);
	__mfc_tag_release(tag);
	return 0;
}

/* At any places: bytes that do not lie at the same place of a quadword go through one that does. */
static int copy_any(u64 ea, u32 own, u32 bytes, u32 command)
{
	char quadword[32] __attribute__((aligned(16)));
	if (((u32)ea & 15) == (own & 15)) {
		u32 before = -own & 15;
		before = before < bytes ? before : bytes;
		while (before) {
			/* The largest power of two that is aligned and fits. */
			u32 part = own & -own;
			while (part > before)
				part /= 2;
			if (copy(ea, own, part, command))
				return -1;
			ea += part;
			own += part;
			bytes -= part;
			before -= part;
		}
		return bytes ? copy(ea, own, bytes, command) : 0;
	}
	while (bytes) {
		u32 place = (u32)ea & 15, part = 16 - place < bytes ? 16 - place : bytes;
		if (command == PUT)
			memcpy(quadword + place, (char *)own, part);
		if (copy_any(ea, (u32)quadword + place, part, command))
			return -1;
		if (command == GET)
			memcpy((char *)own, quadword + place, part);
		ea += part;
		own += part;
		bytes -= part;
	}
	return 0;
}

size_t _copy_to_ls(u32 to, u64 from, size_t bytes) { return copy_any(from, to, bytes, GET) ? 0 : bytes; }
size_t _copy_from_ls(u64 to, u32 from, size_t bytes) { return copy_any(to, from, bytes, PUT) ? 0 : bytes; }
int copyin(u64 ea, void *to, u32 bytes) { return copy_any(ea, (u32)to, bytes, GET); }
int copyout(u64 ea, const void *from, u32 bytes) { return copy_any(ea, (u32)from, bytes, PUT); }
