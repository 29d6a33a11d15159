/* The SPU's generic intrinsics on the host, so that source of the SPU compiles for it. */
#ifndef _SPU2VMX_H_
#define _SPU2VMX_H_

#include <si2vmx.h>

#endif
