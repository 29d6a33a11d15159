/* Programs of isolated contexts, which are emulated here (SPE_ISOLATE_EMULATE): their stores are open, so memory
 * is copied as it is. 0, or not where it cannot be copied.
 */
#ifndef _LIBISOLATION_H_
#define _LIBISOLATION_H_
#ifdef __cplusplus
extern "C" {
#endif
extern int copyin(unsigned long long ea, void *to, unsigned int bytes);
extern int copyout(unsigned long long ea, const void *from, unsigned int bytes);
#ifdef __cplusplus
}
#endif
#endif
