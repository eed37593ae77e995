// Stands for miniaudio, which ollama vendors and Go module archives leave out. ollama
// uses it to read sound files only; text never comes here, and a sound is refused.
#pragma once

typedef unsigned long long ma_uint64;
typedef int ma_result;
enum { MA_SUCCESS = 0, MA_NOT_IMPLEMENTED = -29 };
enum ma_format { ma_format_f32 = 5 };
struct ma_decoder_config {};
struct ma_decoder {};

static inline ma_decoder_config ma_decoder_config_init(ma_format, int, int) { return {}; }
static inline ma_result ma_decoder_init_memory(const void *, unsigned long, const ma_decoder_config *, ma_decoder *) { return MA_NOT_IMPLEMENTED; }
static inline ma_result ma_decoder_get_length_in_pcm_frames(ma_decoder *, ma_uint64 *) { return MA_NOT_IMPLEMENTED; }
static inline ma_result ma_decoder_read_pcm_frames(ma_decoder *, void *, ma_uint64, ma_uint64 *) { return MA_NOT_IMPLEMENTED; }
static inline void ma_decoder_uninit(ma_decoder *) {}
