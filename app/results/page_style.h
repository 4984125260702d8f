// The look of `axial report`.
#pragma once

namespace axial::app {

inline constexpr const char* kPageStyle = R"(
:root { color-scheme: light; --line: #d5d9de; --soft: #5a6570; --blue: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 24px 28px 60px; color: #1b2228; background: #fff;
       font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 40px 0 10px; padding-bottom: 4px; border-bottom: 2px solid var(--line); }
h3 { font-size: 16px; margin: 26px 0 8px; }
p { margin: 6px 0 12px; max-width: 90ch; }
.soft { color: var(--soft); }
.whole { white-space: nowrap; }
code { font: 13px "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px 4px 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: baseline; }
th { font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; }
td.key code { overflow-wrap: normal; white-space: nowrap; }
.chip { display: inline-block; width: 22px; height: 10px; border-radius: 3px; margin-right: 8px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 10px 24px; }
figure { margin: 0; }
figcaption { font-weight: 600; margin-bottom: 2px; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, "DejaVu Sans", sans-serif; }
svg text { fill: #3a444d; }
svg .grid { stroke: #e6e9ec; } svg .axis, svg .tick { stroke: #8a949d; }
.scroll { max-height: 620px; overflow: auto; }
.wide { overflow-x: auto; }
.bar { display: inline-block; height: 10px; background: var(--blue); border-radius: 2px; vertical-align: middle; }
.track { display: inline-block; width: 180px; background: #eef1f4; border-radius: 2px; line-height: 10px; }
.tiles { display: flex; flex-wrap: wrap; gap: 14px; }
.tile { width: 132px; font-size: 13px; line-height: 1.3; overflow-wrap: anywhere; }
.tile img { width: 132px; display: block; margin-bottom: 4px; border: 1px solid var(--line); }
.looks { display: grid; grid-template-columns: repeat(auto-fill, minmax(560px, 1fr)); gap: 18px 28px; }
.look .four { display: grid; grid-template-columns: repeat(4, 1fr); gap: 6px; }
.look img { width: 100%; display: block; border: 1px solid var(--line); }
img.pixels { image-rendering: pixelated; }
.look .four div { font-size: 12px; color: var(--soft); }
.note { background: #fff6e0; border-left: 4px solid #e69f00; padding: 8px 12px; }
)";

}  // namespace axial::app
