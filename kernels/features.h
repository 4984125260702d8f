// Dropout on features of tokens, such as the output of a branch, written out as a mask.
//
// The contract of kernels.h holds here too. The draws are those of philox.h: `row` is the token's global number, the
// query is 0, and the keys are the features.
#pragma once

#include "kernels/kernels.h"

namespace axial::kernels {

namespace cpu {

// keep[tokens, features] = 1 where dropout keeps a feature of a token, else 0. dropout.first_line is the global
// number of token 0.
Status feature_mask(std::int64_t tokens, std::int64_t features, const Dropout& dropout, std::uint8_t* keep,
                    const Executor& executor = {});

}  // namespace cpu

namespace cuda {

Status feature_mask(std::int64_t tokens, std::int64_t features, const Dropout& dropout, std::uint8_t* keep,
                    CUstream_st* stream);

}  // namespace cuda

}  // namespace axial::kernels
