/* Effective addresses. A pointer with __ea has 32 bits here; addresses beyond are numbers. */
#ifndef _EA_H_
#define _EA_H_
typedef unsigned long long __sidecore_ea_t;
#endif
