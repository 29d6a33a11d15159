/* The SPU's instructions as intrinsics. A qword has no element type. Where the driver makes lanes exact, it
 * has the register's bytes, casts turn them, and quadwords in memory are taken as words unless a cast beside
 * the load or store says what they are. Elsewhere it has the bytes of memory: those that count bytes (shufb,
 * the quadword's rotations and shifts by bytes) take memory's order, and those that shift by bits words. */
#ifndef _SPU_SI_H_
#define _SPU_SI_H_

typedef __spe_vec_char16 qword;

/* Scalars in their preferred slots: the first form has memory's order, the second the register's. */
#define __SI_SCALAR(name, type, vector, slot) \
	__SPU_INLINE type __si_raw_to_##name(qword a) { return ((vector)a)[0]; } \
	__SPU_INLINE qword __si_raw_from_##name(type x) { vector r = {0}; r[0] = x; return (qword)r; } \
	__SPU_INLINE type __si_exact_to_##name(qword a) \
	{ \
		return ((vector)__spe_turned((__spe_vec_uchar16)a, sizeof(type) - 1))[slot]; \
	} \
	__SPU_INLINE qword __si_exact_from_##name(type x) \
	{ \
		vector r = {0}; \
		r[slot] = x; \
		return (qword)__spe_turned((__spe_vec_uchar16)r, sizeof(type) - 1); \
	}
__SI_SCALAR(char, signed char, vec_char16, 3)
__SI_SCALAR(uchar, unsigned char, vec_uchar16, 3)
__SI_SCALAR(short, short, vec_short8, 1)
__SI_SCALAR(ushort, unsigned short, vec_ushort8, 1)
__SI_SCALAR(int, int, vec_int4, 0)
__SI_SCALAR(uint, unsigned int, vec_uint4, 0)
__SI_SCALAR(llong, long long, vec_llong2, 0)
__SI_SCALAR(ullong, unsigned long long, vec_ullong2, 0)
__SI_SCALAR(float, float, vec_float4, 0)
__SI_SCALAR(double, double, vec_double2, 0)
__SPU_INLINE void *__si_raw_to_ptr(qword a) { return (void *)(__UINTPTR_TYPE__)__si_raw_to_uint(a); }
__SPU_INLINE qword __si_raw_from_ptr(const void *p) { return __si_raw_from_uint((unsigned int)(__UINTPTR_TYPE__)p); }
__SPU_INLINE void *__si_exact_to_ptr(qword a) { return (void *)(__UINTPTR_TYPE__)__si_exact_to_uint(a); }
__SPU_INLINE qword __si_exact_from_ptr(const void *p) { return __si_exact_from_uint((unsigned int)(__UINTPTR_TYPE__)p); }

/* The pattern that puts an element, whose first byte in its slot is given, into its place of a quadword. */
__SPU_INLINE qword __si_insertion(unsigned int address, int size, int first)
{
	vec_uchar16 r = __SPU_PLACES | 16;
	int each, place = address & 15 & -size;
	for (each = 0; each < size; each++)
		r[place + each] = first + each;
	return (qword)r;
}

#endif
