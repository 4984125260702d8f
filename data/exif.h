// The one thing in Exif that changes what is seen: which way up the camera was. Inside data/ only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/decode.h"

namespace axial::data {

// `bytes`: what an APP1 marker holds. The orientation, 1 to 8; 1 (as stored) where the marker is not Exif, does not
// say, or is damaged: a picture with a bad note is still a picture.
int exif_orientation(const std::uint8_t* bytes, std::size_t size);

// The pixels as they are meant to be seen; orientations 5 to 8 swap height and width.
Pixels upright(Pixels pixels, int orientation);

}  // namespace axial::data
