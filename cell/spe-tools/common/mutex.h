/* Types of libsync's mutexes, by the header that the library's first versions had for them. */
#include <sidecore_sync.h>
