/* word -- a word in a child's arena by which a helper says something before its call has ended.
 *
 * The child writes SHM_NOT_SAID, sends the call with the word's address, and sleeps on the word. It
 * also looks for the call's answer from time to time: a helper that dies says nothing.
 *
 * Owns: the word, and the sleep on it. Must never: be the only way to learn how a call ended.
 */
#ifndef SHMI_WORD_H
#define SHMI_WORD_H

#include <stdint.h>

/* What was said; SHM_NOT_SAID after that time, or after a signal. */
uint32_t shmi_word_wait(uint32_t *word, int64_t timeout_ns);
/* SHM_EBAD_PARAMS: it is no word in which nothing was said yet. */
int shmi_word_say(uint32_t *word, uint32_t what);

#endif
