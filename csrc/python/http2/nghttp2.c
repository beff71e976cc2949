/* nghttp2 -- the table of the library's functions, filled by the loader. See nghttp2.h. */
#include "python/http2/nghttp2.h"

#include <dlfcn.h>
#include <string.h>

static const char LIBRARY[] = "libnghttp2.so.14";

nghttp2_t shmi_nghttp2;

const char *shmi_find_nghttp2(void) {
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return dlerror();
#define NGHTTP2_FIND(result, name, arguments)                        \
  {                                                                  \
    void *found = dlsym(library, "nghttp2_" #name);                  \
    if (found == NULL) return dlerror();                             \
    memcpy(&shmi_nghttp2.name, &found, sizeof found); /* of code */  \
  }
  NGHTTP2_FUNCTIONS(NGHTTP2_FIND)
#undef NGHTTP2_FIND
  return NULL;
}
