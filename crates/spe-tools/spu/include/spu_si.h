/* The SPU's instructions as intrinsics. A qword has no element type, so those that count bytes (shufb, the
 * quadword's rotations and shifts by bytes) take bytes in the order of memory, and those that shift by bits
 * take words; spu_shuffle and its like know their elements and are exact. */
#ifndef _SPU_SI_H_
#define _SPU_SI_H_

typedef __spe_vec_char16 qword;

#define __SI_SCALAR(name, type, vector, slot) \
	__SPU_INLINE type si_to_##name(qword a) { return ((vector)a)[slot]; } \
	__SPU_INLINE qword si_from_##name(type x) { vector r = {0}; r[slot] = x; return (qword)r; }
__SI_SCALAR(char, signed char, vec_char16, 0)
__SI_SCALAR(uchar, unsigned char, vec_uchar16, 0)
__SI_SCALAR(short, short, vec_short8, 0)
__SI_SCALAR(ushort, unsigned short, vec_ushort8, 0)
__SI_SCALAR(int, int, vec_int4, 0)
__SI_SCALAR(uint, unsigned int, vec_uint4, 0)
__SI_SCALAR(llong, long long, vec_llong2, 0)
__SI_SCALAR(ullong, unsigned long long, vec_ullong2, 0)
__SI_SCALAR(float, float, vec_float4, 0)
__SI_SCALAR(double, double, vec_double2, 0)
__SPU_INLINE void *si_to_ptr(qword a) { return (void *)((vec_uint4)a)[0]; }
__SPU_INLINE qword si_from_ptr(const void *p) { return si_from_uint((unsigned int)p); }

/* The pattern that puts an element into its place of a quadword in memory. */
__SPU_INLINE qword __si_insertion(unsigned int address, int size)
{
	vec_uchar16 r = __SPU_PLACES | 16;
	int each, place = address & 15 & -size;
	for (each = 0; each < size; each++)
		r[place + each] = each;
	return (qword)r;
}

#endif
