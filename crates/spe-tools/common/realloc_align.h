#include <libmisc.h>
