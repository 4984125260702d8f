// The command line as CLI11 can take it.
#pragma once

#include <string>
#include <vector>

namespace axial::app {

// Without the program's name, and with what CLI11 would take apart wrongly or in another order put plainly:
//   --resume PATH   --resume=PATH        --resume alone   --resume-newest
//   --explain KEY   --explain=KEY        --explain alone  --keys
//   --lr 0.1        optim.lr=0.1 (train and config: a key's flag is key=value, in the order given; later wins)
std::vector<std::string> plain_arguments(int argc, char** argv);

}  // namespace axial::app
