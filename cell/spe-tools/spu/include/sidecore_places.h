/* Pointers from numbers, and numbers from pointers, for the second preprocessing.
 *
 * An SPU's address is a place in its store; here the store begins elsewhere. So a number of such a place becomes an
 * address of the store where it is cast to a pointer, and the same place again where the pointer is cast to a number.
 * Numbers below the least stay as they are: 0 is no pointer, and programs hand small numbers on as pointers; what lies
 * there, the program's head and its first functions, keeps its address. Numbers behind the store's end give addresses
 * in the guard behind it, so that a loop's end is above its begin; what is read there wraps, as on an SPU.
 */
#ifndef SIDECORE_PLACES_H
#define SIDECORE_PLACES_H
#pragma GCC system_header

#ifdef __cplusplus
extern "C"
#else
extern
#endif
char __sidecore_place[] __attribute__((visibility("hidden")));

#define __SPE_PLACE_LEAST 0x400u
#define __SPE_PLACE_END 0x80000u
#define __SPE_STORE ((unsigned int)(__UINTPTR_TYPE__)__sidecore_place & 0xfffc0000u)

static inline __attribute__((always_inline)) unsigned int __spe_placed(unsigned int __n)
{
	return __n - __SPE_PLACE_LEAST < __SPE_PLACE_END - __SPE_PLACE_LEAST ? __n + __SPE_STORE : __n;
}

static inline __attribute__((always_inline)) unsigned int __spe_numbered(unsigned int __n)
{
	return __n - __SPE_STORE - __SPE_PLACE_LEAST < __SPE_PLACE_END - __SPE_PLACE_LEAST ? __n - __SPE_STORE : __n;
}

#ifdef __cplusplus
#define __SPE_INLINE static inline __attribute__((always_inline))
#define __SPE_OF_NUMBERS(T) \
	__SPE_INLINE unsigned int __spe_place_of(T __n) { return __spe_placed((unsigned int)__n); } \
	__SPE_INLINE T __spe_number_of(T __n) { return __n; }
__SPE_OF_NUMBERS(bool) __SPE_OF_NUMBERS(char) __SPE_OF_NUMBERS(signed char) __SPE_OF_NUMBERS(unsigned char)
__SPE_OF_NUMBERS(short) __SPE_OF_NUMBERS(unsigned short) __SPE_OF_NUMBERS(int) __SPE_OF_NUMBERS(unsigned int)
__SPE_OF_NUMBERS(long) __SPE_OF_NUMBERS(unsigned long) __SPE_OF_NUMBERS(long long)
__SPE_OF_NUMBERS(unsigned long long)
#undef __SPE_OF_NUMBERS
template <class S> __SPE_INLINE S *__spe_place_of(S *__p) { return __p; }
template <class S> __SPE_INLINE const S &__spe_place_of(const S &__x) { return __x; }
template <class S> __SPE_INLINE unsigned int __spe_number_of(S *__p)
{
	return __spe_numbered((unsigned int)(__UINTPTR_TYPE__)__p);
}
template <class S> __SPE_INLINE const S &__spe_number_of(const S &__x) { return __x; }
#undef __SPE_INLINE
#define __spe_place(...) (__spe_place_of(__VA_ARGS__))
#define __spe_place_cast(cast, ...) (__builtin_classify_type(__VA_ARGS__) < 5 ? \
	cast __spe_place_of(__VA_ARGS__) : cast (__VA_ARGS__))
#define __spe_number(...) (__spe_number_of(__VA_ARGS__))
#else
/* The compiler says what is a number (1 to 4) and what a pointer (5); the other expression is none of the program's. */
#define __spe_place(...) __builtin_choose_expr(__builtin_classify_type(__VA_ARGS__) < 5, \
	__spe_placed((unsigned int)(__VA_ARGS__)), (__VA_ARGS__))
#define __spe_number(...) __builtin_choose_expr(__builtin_classify_type(__VA_ARGS__) == 5, \
	__spe_numbered((unsigned int)(__VA_ARGS__)), (__VA_ARGS__))
#endif

#endif
