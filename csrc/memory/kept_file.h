/* kept_file -- memory files that hold the arguments of a broadcast.
 *
 * The helper that runs a broadcast first makes the file and fills it; sealed, nobody can change it
 * any more, not even its size. It outlives the program that sent it: the parent keeps its descriptor
 * and passes that on to other helpers, each of which maps it for itself (MAP_PRIVATE: a function
 * that writes to its arguments changes its own pages).
 *
 * Owns: the making and mapping of such files. Must never: know what lies in one, or take memory
 * before it is calculated that there is enough.
 */
#ifndef SHMI_KEPT_FILE_H
#define SHMI_KEPT_FILE_H

#include "base/status.h"

/* A file of that many bytes, to be filled: its descriptor, or SHM_ENO_MEMORY with a sentence in the
 * detail, or SHM_ESYSTEM. */
int shmi_kept_file_make(uint64_t bytes);
/* From now on nobody can write to it. */
int shmi_kept_file_seal(int fd);
/* Its bytes; 0: it is no sealed file. */
uint64_t shmi_kept_file_bytes(int fd);
/* NULL: SHM_ESYSTEM is meant, with a sentence in the detail. */
void *shmi_kept_file_map(int fd, uint64_t bytes);
void shmi_kept_file_unmap(void *at, uint64_t bytes);

#endif
