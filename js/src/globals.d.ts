// Import forms that build.mjs understands and TypeScript does not know.

declare module "inline-worker:*" {
  const source: string;
  export default source;
}

declare module "*.css";
