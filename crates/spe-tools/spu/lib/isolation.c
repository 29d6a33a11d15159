/* Copies between the store and the host's memory for programs of isolated contexts. */
#include <libisolation.h>
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

int copyin(u64 ea, void *to, u32 bytes) { return copy(ea, (u32)to, bytes, GET); }
int copyout(u64 ea, const void *from, u32 bytes) { return copy(ea, (u32)from, bytes, PUT); }
