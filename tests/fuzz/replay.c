/* replay.c -- main() of a fuzz target without a fuzzer: runs it on each file that is named. */
#include "fuzz.h"

int main(int argc, char **argv) {
  static uint8_t data[1 << 20];
  for (int i = 1; i < argc; i++) {
    FILE *file = fopen(argv[i], "rb");
    REQUIRE(file != NULL);
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    uint8_t *exact = malloc(size > 0 ? size : 1); /* a sanitizer sees one byte too many */
    REQUIRE(exact != NULL);
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
  }
  printf("%d inputs\n", argc - 1);
  return 0;
}
