// The configurations that are installed with the program.
#pragma once

#include <string>

namespace axial::app {

// share/axial/configs of the tree that this program was installed in; "" where it runs from elsewhere (a build).
std::string shipped_configs();

// `name` itself where there is such a file, or where it names a folder, too; else the installed configuration of that
// name, with or without .yaml; else `name`.
std::string find_config(const std::string& name);

}  // namespace axial::app
