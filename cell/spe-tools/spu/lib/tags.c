/* Tag groups that a program's parts share out: a reserved tag is the lowest one free. */
#include "call.h"

enum { TAGS = 32 };
static u32 taken;

u32 __mfc_multi_tag_reserve(u32 count)
{
	u32 first, mask = count < TAGS ? (1u << count) - 1 : ~0u;
	if (count == 0 || count > TAGS)
		return ~0u;
	for (first = 0; first + count <= TAGS; first++) {
		if (!(taken >> first & mask)) {
			taken |= mask << first;
			return first;
		}
	}
	return ~0u;
}

u32 __mfc_multi_tag_release(u32 first, u32 count)
{
	u32 mask = count < TAGS ? (1u << count) - 1 : ~0u;
	if (count == 0 || first + count > TAGS || (taken >> first & mask) != mask)
		return ~0u;
	taken &= ~(mask << first);
	return 0;
}

u32 __mfc_tag_reserve(void) { return __mfc_multi_tag_reserve(1); }
u32 __mfc_tag_release(u32 tag) { return __mfc_multi_tag_release(tag, 1); }
